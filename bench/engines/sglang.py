"""SGLang on a CPU beside the reference engine and, if it is there, vLLM: logprobs against a plain
forward pass of transformers, with updates inside of calls, too; then the demo's training."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from bench.frame import Found, Row
from bench.vllm_training import training
from prorl_service.inference.backend import Backend
from prorl_service.inference.base import Generation
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.inference.sources import WeightFile
from prorl_service.schemas import Sampling
from tests import real_engines, sglang_engine, vllm_engine
from tests.inference.contract import (
    GREEDY,
    TOLERANCE,
    VOCABULARY,
    Engine,
    ask,
    exact_logprobs,
    prompt,
)

CALLS, UPDATES, STEPS = 16, 6, 40
WARM, LONG = Sampling(), 1500
CASES: dict[str, tuple[Sampling, int, int, Sequence[int]]] = {
    "temperature 1": (WARM, 300, 64, ()),
    "temperature 0.7": (Sampling(temperature=0.7), 300, 64, ()),
    "temperature 0": (GREEDY, 300, 64, ()),
    "stop ids": (WARM, 300, 64, [*range(VOCABULARY - 32, VOCABULARY)]),
    "prompts of 1500": (WARM, LONG, 64, ()),
}
"""Sampling, length of the prompts, tokens of the answers and ids that end them, by case."""


def measure(quick: bool) -> Found | None:
    if not sglang_engine.PYTHON.exists():
        return None
    kinds = ["reference", "sglang", *(["vllm"] if vllm_engine.PYTHON.exists() else [])]
    exact = {kind: asyncio.run(_exactness(kind)) for kind in kinds}
    steps = 2 if quick else STEPS
    rows = training.measure((0,), steps, engines=["SGLang"], trainers=["GRPOTrainer"])
    ours, [trained] = exact["sglang"], rows
    differences = [*(ours[case] for case in CASES), ours["updates"], trained["logprob_diff_max"]]
    headline = {
        "sglang_logprob_diff_max": max(differences),
        "sglang_versions_wrong": ours["versions_wrong"] + trained["versions_wrong"],
        "sglang_success_before": trained["before"],
        "sglang_success_after": trained["after"],
    }
    return Found([*exact.values(), *rows], headline)


async def _exactness(kind: str) -> Row:
    """Returns the largest difference of a logprob, by case."""
    with TemporaryDirectory(prefix="prorl-bench-") as directory:
        models = [Path(directory) / f"model-{seed}" for seed in range(2)]
        for seed, model in enumerate(models):
            build_tiny_model(model, seed=seed)
        log = Path(directory) / "engine.log"
        with real_engines.engine(kind, models[0], log=log) as process:
            async with Engine(process.url, models[0]).backend() as backend:
                await backend.check_logprobs(await backend.describe(), may_probe=True)
                row: Row = {"engine": kind}
                for case, options in CASES.items():
                    row[case] = max(await _differences(backend, models, *options))
                calls = asyncio.create_task(_differences(backend, models, WARM, 20, LONG, ()))
                for version in range(1, UPDATES + 1):
                    await asyncio.sleep(0.3)
                    file = models[version % 2] / "model.safetensors"
                    await backend.load_weights(WeightFile(file), str(version), timeout_s=60)
                updated = await calls
    right = [one for one in updated if one < TOLERANCE]
    return row | {"updates": max(right), "versions_wrong": len(updated) - len(right)}


async def _differences(
    backend: Backend,
    models: list[Path],
    sampling: Sampling,
    length: int,
    max_tokens: int,
    stops: Sequence[int],
) -> list[float]:
    """Returns the difference of each token's logprob from that by the weights of its version."""

    async def call(number: int) -> list[float]:
        asked = prompt(length, seed=number)
        answer = await ask(
            backend,
            asked,
            sampling=sampling,
            max_tokens=max_tokens,
            session_id=str(number),
            stop_token_ids=stops,
        )
        return _of_versions(models, asked, answer, sampling.temperature)

    return [one for answer in await asyncio.gather(*map(call, range(CALLS))) for one in answer]


def _of_versions(
    models: list[Path], asked: list[int], answer: Generation, temperature: float
) -> list[float]:
    exact = torch.stack(
        [exact_logprobs(one, asked, answer.token_ids, temperature) for one in models]
    )
    which = torch.tensor(answer.policy_versions) % len(models)
    places = torch.arange(len(answer.token_ids))
    chosen = exact[which, places, torch.tensor(answer.token_ids)]
    differences: list[float] = (chosen - torch.tensor(answer.logprobs)).abs().tolist()
    return differences
