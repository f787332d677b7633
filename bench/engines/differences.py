"""Weights as differences and whole: a trainer in fp32 with AdamW at a learning rate of 1e-6, and a
vLLM in bf16 that shares no file system with the service.

Both go over HTTP on one machine, so the network costs nothing: the ratios of time are those of the
work alone. In each round the same service gets a step whole, and the next one as a difference.
"""

import contextlib
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM

from bench.frame import Found, Row, alternate, ratios
from bench.vllm_training.weights import SHAPES, engine, random_model
from prorl_service import local
from prorl_service.client import RolloutClient, weights_copy
from prorl_service.client.policy import HeldPolicy
from prorl_service.client.weights_copy import WeightsCopy
from prorl_service.inference.engines.vllm_routes import GENERATE
from prorl_service.schemas import WeightsQuery, WeightsTerms
from prorl_trl.safetensors_file import SafetensorsFile
from prorl_trl.weights import PolicyWeights
from tests import vllm_engine

ROUNDS, LEARNING_RATE, TOKENS = 5, 1e-6, (2, 64)
POLL_S = 0.002
NAMES = ("whole", "difference")


def measure(quick: bool) -> Found | None:
    if not vllm_engine.PYTHON.exists():
        return None
    with TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        model = random_model(directory / "model", SHAPES["1 GB"])
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(weights_copy, "FIRST_DIFFERENCES", 10**9)  # go on, were they slower or not
        vllm = stack.enter_context(engine("vllm", model, directory))
        with contextlib.chdir(directory):  # a path that means another file elsewhere
            options = ["--journal", "/proc/self/cwd/journal"]
            log = directory / "service"
            service = stack.enter_context(local.service([vllm.url], log=log, options=options))
        policy = stack.enter_context(HeldPolicy(service.url))
        client = stack.enter_context(RolloutClient(service.url, training=policy.key))
        pushes = Pushes(client, vllm.url, model)
        ways = {way: partial(pushes.step, way) for way in NAMES}
        found = alternate(ways, 2 if quick else ROUNDS)
    whole, difference = (found[name] for name in NAMES)

    def ratio(column: str) -> float:
        columns = ([row[column] for row in rows] for rows in (difference, whole))
        return round(median(ratios(*columns)), 4)

    headline = {
        "delta_bytes_share": ratio("sent_mb"),
        "delta_pause_ratio": ratio("pause_s"),
        "delta_push_ratio": ratio("push_s"),
        "delta_bit_exact": all(row["is_exact"] for row in (*whole, *difference)),
    }
    return Found([*whole, *difference], headline)


class Pushes:
    def __init__(self, client: RolloutClient, engine_url: str, model: Path) -> None:
        self._client, self._url = client, engine_url
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=LEARNING_RATE)
        self._copy = WeightsCopy()

    def step(self, way: str, _: int) -> Row:
        """Trains one step and pushes it. A whole push of the same step then shows whether engine
        and service have what they would have by it."""
        self._send(self._file())  # whole, unless the service has the last step as a difference
        self._train()
        file, send = self._file(), {"whole": self._send_whole, "difference": self._send}[way]
        with self._paused() as pauses:
            began = time.monotonic()
            send(file)
            push_s = time.monotonic() - began
        digest, tokens = self._terms().base, self._sampled()
        self._send_whole(file)
        is_exact = (digest, tokens) == (self._terms().base, self._sampled())
        assert self._copy._directory is not None
        difference = self._copy._directory / "difference"
        sent = difference.stat().st_size if way == "difference" else file.size
        return {
            **{"way": way, "sent_mb": round(sent / 1e6, 3), "push_s": round(push_s, 3)},
            **{"pause_s": round(sum(pauses), 3), "is_exact": is_exact},
        }

    def _train(self) -> None:
        ids = torch.randint(300, TOKENS)
        self._model(input_ids=ids, labels=ids).loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()

    def _file(self) -> SafetensorsFile:
        tensors = dict(self._model.state_dict())
        del tensors["lm_head.weight"]  # tied
        return SafetensorsFile(PolicyWeights(tensors), torch.bfloat16)

    def _send(self, file: SafetensorsFile) -> None:
        terms = self._terms()
        self._copy.send(self._client, file, base=terms.base, after=terms.newest)

    def _send_whole(self, file: SafetensorsFile) -> None:
        self._client.stream_weights(file)

    def _terms(self) -> WeightsTerms:
        return self._client.weights_terms(WeightsQuery())

    def _sampled(self) -> Any:
        """Returns greedy tokens and their logprobs."""
        params = {"max_tokens": 32, "temperature": 0, "logprobs": 0}
        body = {"token_ids": [*range(50)], "sampling_params": params}
        answer = httpx.post(f"{self._url}{GENERATE}", json=body, timeout=60, trust_env=False)
        return answer.json()["choices"][0]["logprobs"]["content"]

    @contextlib.contextmanager
    def _paused(self) -> Iterator[list[float]]:
        """Yields the seconds of the engine's pauses, complete when the block has ended."""
        pauses: list[float] = []
        ended = threading.Event()

        def watch() -> None:
            began = None
            with httpx.Client(base_url=self._url, trust_env=False, timeout=60) as http:
                while not ended.wait(POLL_S):
                    is_paused = http.get("/is_paused").json()["is_paused"]
                    if is_paused and began is None:
                        began = time.monotonic()
                    elif not is_paused and began is not None:
                        pauses.append(time.monotonic() - began)
                        began = None

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield pauses
        finally:
            time.sleep(0.1)  # the last pause is seen to end
            ended.set()
            watcher.join()
