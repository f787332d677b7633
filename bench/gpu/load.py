"""Rollouts on one vLLM, by the service and by a bare loop of the same calls, in turn.

A rollout is so many calls, each with the ids of all before it and of a short message. The bare loop
is asyncio and aiohttp without a template, budgets, a queue or any record. Weights are random, so
that a reply ends at its limit.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import orjson

from bench.load.ours import process_cpu_s
from bench.nodes.agent import AGENT, group
from bench.result import Part
from bench.vllm_training.weights import VLLM
from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.inference.engines.vllm_routes import GENERATE
from prorl_service.schemas import Limits, Sampling
from prorl_service.tokens.chat import ChatFormat

ROLLOUTS = 256
CALLS = 4
TOKENS = 128
"""Tokens of each reply."""
ROUNDS = 3
OPTIONS = ("--dtype", "bfloat16", "--max-model-len", "4096", "--max-num-seqs", str(ROLLOUTS))
WAIT_S = 240.0
JSON = {"Content-Type": "application/json"}


def measure(model: Path) -> Part:
    with TemporaryDirectory() as directory:
        logs = Path(directory)
        with (
            local.vllm(VLLM, model, log=logs / "vllm", options=OPTIONS) as engine,
            local.service(
                [engine.url],
                log=logs / "service",
                options=[*AGENT, "--run-workers", str(ROLLOUTS)],
            ) as service,
            RolloutClient(service.url) as client,
        ):
            bare = Bare(engine.url, ChatFormat.load(str(model), None))
            ours = Ours(client)
            return _compared(ours, bare, service.pid)


def _compared(ours: "Ours", bare: "Bare", pid: int) -> Part:
    _timed(ours.run), _timed(bare.run)  # the first calls compile and capture
    seconds: dict[str, list[float]] = {"service": [], "bare loop": []}
    cpu_s = 0.0
    for _ in range(ROUNDS):
        before = process_cpu_s(pid)
        seconds["service"].append(_timed(ours.run))
        cpu_s += process_cpu_s(pid) - before
        seconds["bare loop"].append(_timed(bare.run))
    sampled = ROLLOUTS * CALLS * TOKENS
    rows = [
        {
            "who": who,
            "rollouts": ROLLOUTS,
            "calls": CALLS,
            "s": round(median(found), 2),
            "tokens_per_s": round(sampled / median(found)),
        }
        for who, found in seconds.items()
    ]
    share = median(seconds["bare loop"]) / median(seconds["service"])
    figures = {
        "tokens_per_s": rows[0]["tokens_per_s"],
        "of_bare_loop": round(share, 3),
        "service_cores": round(cpu_s / sum(seconds["service"]), 3),
    }
    return rows, figures


def _timed(run: Callable[[], int]) -> float:
    """Raises `AssertionError` if a token is missing."""
    began = time.perf_counter()
    sampled = run()
    seconds = time.perf_counter() - began
    assert sampled > 0.99 * ROLLOUTS * CALLS * TOKENS, sampled  # a few samples end early
    return seconds


class Ours:
    def __init__(self, client: RolloutClient) -> None:
        self._client = client

    def run(self) -> int:
        limits = Limits(max_turns=CALLS, run_timeout_s=WAIT_S)
        more = {"sampling": Sampling(max_tokens_per_turn=TOKENS), "limits": limits}
        groups = [group(CALLS).model_copy(update=more) for _ in range(ROLLOUTS // group(1).n)]
        self._client.submit(groups)
        ids = [one for each in groups for one in each.rollout_ids()]
        return sum(
            sum(segment.loss_mask)
            for rollout in self._client.stream(ids, timeout_s=WAIT_S)
            if rollout.trajectory is not None
            for segment in rollout.trajectory.segments
        )


class Bare:
    def __init__(self, url: str, chat: ChatFormat) -> None:
        self._url = url
        message = group(1).task.messages
        self._message = chat.prompt_ids(message)

    def run(self) -> int:
        return asyncio.run(self._run())

    async def _run(self) -> int:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(self._url, connector=connector) as http:
            return sum(await asyncio.gather(*(self._rollout(http) for _ in range(ROLLOUTS))))

    async def _rollout(self, http: aiohttp.ClientSession) -> int:
        ids, sampled = list(self._message), 0
        for _ in range(CALLS):
            parameters: dict[str, Any] = {"max_tokens": TOKENS, "logprobs": 0, "detokenize": False}
            body = {"token_ids": ids, "sampling_params": {"temperature": 1.0, **parameters}}
            async with http.post(GENERATE, data=orjson.dumps(body), headers=JSON) as answer:
                [choice] = orjson.loads(await answer.read())["choices"]
            sampled += len(choice["token_ids"])
            ids += [*choice["token_ids"], *self._message]
        return sampled
