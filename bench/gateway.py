"""What a gateway for programs costs: tokens for the trainer, CPU for a call, a first request.

`scenarios`: what real harnesses send, recorded, played to the gateway; `whole_tokens` are those of
a gateway that renders each request as a whole and extends a chain only by an exact prefix, a
segment for each call. `cost`: CPU time of the service's own process for each model call, of our
loop and of a harness in its place, in turns; both do the work of `bench.load`. `first_request`: the
largest one, 80 kB of Qwen Code, and how long it holds the event loop; `render_ms` is the time to
render and tokenise it alone, the floor. Two minutes.
"""

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench import frame
from bench.load.ours import AT_ONCE, MESSAGES, VOCAB_SIZE, cpu_s, run, stub_engine
from bench.load.workload import MODEL_CALLS
from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.client.harness import with_program
from prorl_service.gateway.dialects import chat as dialect
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.schemas import Task
from prorl_service.tokens.chat import ChatFormat
from recipes.demo.programs import OPENAI_AGENT
from tests.gateway.rollouts import Rollout, rollout
from tests.gateway.test_traces import SEGMENTS
from tests.gateway.traces import exchanges, play_back, recordings

CONTEXT = 1 << 20
ROUNDS, LATENCY_MS = 3, 50
QUICK_AT_ONCE = 4
LOOP, HARNESS = "our loop", "40 lines on the openai SDK"
LARGEST, REQUESTS, TICK_S = "qwen_code-work", 15, 0.001


def _chat() -> ChatFormat:
    with TemporaryDirectory() as directory:
        build_tiny_model(Path(directory))
        return ChatFormat.load(directory)


def scenarios(quick: bool) -> frame.Found:
    chat = _chat()
    names = list(recordings())
    rows = [asyncio.run(_scenario(name, chat)) for name in (names[:3] if quick else names)]
    tokens, whole = (sum(row[column] for row in rows) for column in ("tokens", "whole_tokens"))
    headline = {
        "scenarios": len(rows),
        "scenarios_exact": sum(row["is_exact"] for row in rows),
        "segments_over_oracle": sum(row["segments"] - row["expected"] for row in rows),
        "tokens_vs_whole_renders": round(tokens / whole, 3),
    }
    return frame.Found(rows, headline)


async def _scenario(name: str, chat: ChatFormat) -> frame.Row:
    _, found = exchanges(name)
    async with rollout(chat, [one.reply for one in found], max_model_len=CONTEXT) as played:
        await play_back(played.attempt, found)
    sampled: Sequence[int] = [turn.stop - turn.start for turn in played.attempt.turns]
    return {
        "scenario": name,
        "calls": len(found),
        "segments": played.segments,
        "expected": SEGMENTS[name] or 1,
        "is_exact": _is_exact(played),
        "tokens": sum(len(chain.ids) for chain in played.attempt.ledger.chains),
        "whole_tokens": sum(map(len, played.engine.prompts)) + sum(sampled),
    }


def _is_exact(played: Rollout) -> bool:
    try:
        played.assert_exact()
    except AssertionError:
        return False
    return True


def cost(quick: bool) -> frame.Found:
    at_once, rounds = (QUICK_AT_ONCE, 1) if quick else (AT_ONCE, ROUNDS)
    own = Task(task_id="cost", agent="math", messages=MESSAGES, data={"answer": "1"})
    tasks = {LOOP: own, HARNESS: with_program(own, OPENAI_AGENT.read_text())}
    with TemporaryDirectory() as name:
        model, log = Path(name, "model"), Path(name, "service.log")
        build_tiny_model(model, vocab_size=VOCAB_SIZE)
        options = ["--sandbox", "bubblewrap", "--run-workers", str(at_once)]
        with (
            stub_engine(model, LATENCY_MS) as engine,
            local.service([engine], log=log, options=options) as service,
            RolloutClient(service.url) as client,
        ):
            for task in tasks.values():
                _call_ms(client, service.pid, task, 2, 0)  # to warm up
            turns = {
                name: partial(_call_ms, client, service.pid, task, at_once)
                for name, task in tasks.items()
            }
            found = frame.alternate(turns, rounds)
    rows: list[frame.Row] = [
        {
            "contender": name,
            "rollouts_at_once": at_once,
            "cpu_ms_per_call": median(ms for ms, _ in own),
            "calls": sum(calls for _, calls in own),
        }
        for name, own in found.items()
    ]
    headline = {
        "cpu_ms_per_call_at_64": rows[1]["cpu_ms_per_call"],
        "cpu_ms_per_turn_of_our_loop": rows[0]["cpu_ms_per_call"],
        "double_samples": rows[1]["calls"] - rounds * at_once * MODEL_CALLS,
    }
    return frame.Found(rows, headline)


def _call_ms(
    client: RolloutClient, pid: int, task: Task, at_once: int, _: int
) -> tuple[float, int]:
    """Returns CPU milliseconds of a model call, and the number of calls."""
    before = cpu_s(pid)
    ended = run(client, task, at_once)
    time.sleep(1.0)  # for the last sandboxes to end
    calls = sum(len(one.trajectory.turns) for one in ended if one.trajectory is not None)
    return 1e3 * (cpu_s(pid) - before) / max(1, calls), calls


def first_request(quick: bool) -> frame.Found:
    chat, requests = _chat(), 2 if quick else REQUESTS
    asyncio.run(_first(chat))  # the template is compiled, its form learnt
    found = [asyncio.run(_first(chat)) for _ in range(requests)]
    row = {
        "request": LARGEST,
        "first_ms": median(took for took, _ in found),
        "longest_hold_ms": median(held for _, held in found),
        "render_ms": median(_render_ms(chat) for _ in range(requests)),
    }
    headline = {
        "first_request_ms": row["first_ms"],
        "first_request_render_ms": row["render_ms"],
        "first_request_holds_loop_ms": row["longest_hold_ms"],
    }
    return frame.Found([row], headline)


def _render_ms(chat: ChatFormat) -> float:
    _, [first, *_] = exchanges(LARGEST)
    request = dialect.request(first.body)
    messages = [said.message for said in request.conversation]
    began = time.perf_counter()
    chat.prompt_ids(messages, tools=request.tools)
    return (time.perf_counter() - began) * 1000


async def _first(chat: ChatFormat) -> tuple[float, float]:
    """Returns milliseconds of the first request, and the longest that other tasks waited."""
    _, [first, *_] = exchanges(LARGEST)
    held_ms = [0.0]

    async def watch() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(TICK_S)
            held_ms.append(1e3 * (time.perf_counter() - began - TICK_S))

    async with rollout(chat, [first.reply], max_model_len=CONTEXT) as played:
        watching = asyncio.create_task(watch())
        await asyncio.sleep(0.02)
        began = time.perf_counter()
        await play_back(played.attempt, [first])
        took_ms = 1e3 * (time.perf_counter() - began)
        watching.cancel()
    return took_ms, max(held_ms)


if __name__ == "__main__":
    frame.run("gateway", {"scenarios": scenarios, "cost": cost, "first_request": first_request})
