"""Helpers of the contract tests: an engine under test, and exact logprobs of transformers.

`python -m tests.inference.contract DIR` writes the model that an engine must serve to be tested.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import httpx
import torch
from transformers import AutoModelForCausalLM

from prorl_service.inference.backend import Backend
from prorl_service.inference.base import Generation
from prorl_service.inference.connections import Connections
from prorl_service.inference.engines.base import EngineCall
from prorl_service.inference.engines.versions import label_of
from prorl_service.inference.prompt_json import EncodedPrompt
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.inference.sources import WeightSource
from prorl_service.schemas import Sampling

TOLERANCE = 1e-4
"""Tolerance of fp32 logprobs, against a plain forward pass of transformers."""

VOCABULARY = 384
TOKENIZER_LENGTH = 320
CONTEXT = 2048
EOS = 313
TIMEOUT_S = 240.0
PLAIN = Sampling()
GREEDY = Sampling(temperature=0)


@dataclass
class Engine:
    """An engine under test. `checkpoint` has the weights that the engine serves now."""

    url: str
    checkpoint: Path
    kind: str = "vllm"
    """Prefix of its metrics; the reference engine has vLLM's."""
    version: int = 0

    @asynccontextmanager
    async def backend(self) -> AsyncIterator[Backend]:
        async with aclosing(Connections()) as connections:
            yield Backend(self.url, connections)

    def next_label(self) -> str:
        return label_of(self.version + 1, "push")

    async def load(self, backend: Backend, source: WeightSource, checkpoint: Path) -> None:
        await backend.load_weights(source, self.next_label(), timeout_s=TIMEOUT_S)
        self.version += 1
        self.checkpoint = checkpoint

    async def metric(self, name: str) -> float:
        if self.kind == "sglang" and name == "num_requests_running":  # its metrics are older
            loads = (await self._get("/v1/loads")).json()["loads"]
            return float(sum(one["num_running_reqs"] for one in loads))
        text = (await self._get("/metrics")).text
        lines = [line for line in text.splitlines() if line.startswith(f"{self.kind}:{name}{{")]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    async def _get(self, route: str) -> httpx.Response:
        # Certificates take longer to load than a short answer takes to sample.
        async with httpx.AsyncClient(trust_env=False, verify=False) as http:
            return await http.get(f"{self.url}{route}")

    async def until(self, name: str, holds: Callable[[float], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not holds(await self.metric(name)):  # noqa: ASYNC110 - metrics are polled
                await asyncio.sleep(0.01)


async def ask(
    backend: Backend,
    prompt_ids: list[int],
    *,
    sampling: Sampling = PLAIN,
    max_tokens: int = 16,
    seed: int | None = None,
    session_id: str = "session",
    stop_token_ids: Sequence[int] = (),
    stop: Sequence[str] = (),
) -> Generation:
    async with asyncio.timeout(TIMEOUT_S):
        return await backend.generate(
            EngineCall(
                EncodedPrompt(prompt_ids),
                sampling,
                max_tokens,
                seed,
                session_id,
                stop_token_ids,
                stop,
            )
        )


def prompt(length: int, *, seed: int = 0) -> list[int]:
    """Returns random ids of the model, including those that its tokenizer does not know."""
    random = Random(f"{length} {seed}")
    return [random.randrange(VOCABULARY) for _ in range(length)]


async def endless_prompt(backend: Backend) -> list[int]:
    """Returns a prompt that greedy decoding continues in circles, up to the token limit."""
    for seed in range(50):
        candidate = prompt(8, seed=seed)
        answer = await ask(backend, candidate, sampling=GREEDY, max_tokens=300)
        if answer.finish_reason == "length" and len(set(answer.token_ids[-100:])) < 50:
            return candidate
    raise AssertionError("every greedy answer ends")


def exact_logprobs(
    checkpoint: Path, prompt_ids: list[int], output_ids: list[int], temperature: float = 1.0
) -> torch.Tensor:
    """Returns fp32 [output, vocabulary], from one plain forward pass."""
    with torch.inference_mode():
        logits = _model(checkpoint)(torch.tensor([prompt_ids + output_ids])).logits[0].float()
    scores: torch.Tensor = logits[len(prompt_ids) - 1 : -1] / (temperature or 1.0)
    return scores.log_softmax(-1)


def error(
    checkpoint: Path, prompt_ids: list[int], answer: Generation, temperature: float = 1.0
) -> float:
    """Returns the largest difference of the answer's logprobs from the exact ones."""
    exact = exact_logprobs(checkpoint, prompt_ids, answer.token_ids, temperature)
    chosen = exact.gather(1, torch.tensor(answer.token_ids)[:, None])[:, 0]
    return float((chosen - torch.tensor(answer.logprobs)).abs().max())


async def change_weights_during_a_call(
    engine: Engine, backend: Backend, source: WeightSource, new: Path, *, may_abort: bool = False
) -> None:
    """Gives the engine `source`, which has the weights of `new`, and checks a call in flight and a
    later one. `may_abort`: the call in flight may end."""
    old, old_version = engine.checkpoint, engine.version
    asked = await endless_prompt(backend)
    await ask(backend, prompt(200), session_id="talk")
    call = asyncio.create_task(
        ask(backend, asked, sampling=GREEDY, max_tokens=CONTEXT - len(asked))
    )
    await engine.until("num_requests_running", lambda running: running == 1)
    await engine.load(backend, source, new)

    answer = await call
    is_aborted = answer.finish_reason == "abort"
    assert may_abort or not is_aborted
    tokens = len(answer.token_ids)
    split = tokens if is_aborted else answer.policy_versions.index(engine.version)
    versions = [old_version] * split + [engine.version] * (tokens - split)
    assert answer.policy_versions == versions
    for checkpoint, span in ((old, slice(split)), (new, slice(split, None))):
        exact = exact_logprobs(checkpoint, asked, answer.token_ids)[span]
        assert exact.argmax(-1).tolist() == answer.token_ids[span]
        difference = exact.amax(-1) - torch.tensor(answer.logprobs[span])
        assert difference.numel() == 0 or float(difference.abs().max()) < TOLERANCE

    later = await ask(backend, prompt(200), session_id="talk")
    assert later.cached_tokens == 0
    assert error(new, prompt(200), later) < TOLERANCE
    assert (await backend.describe()).policy_version == engine.version


@cache
def _model(checkpoint: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(checkpoint).eval()


if __name__ == "__main__":
    build_tiny_model(Path(sys.argv[1]))
