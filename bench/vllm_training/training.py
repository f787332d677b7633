"""The demo's training on a real vLLM and on the reference engine: by TRL's synchronous trainer, by
the same with dynamic sampling, and by its asynchronous one, each from the same start.

An engine and a service serve all trainers of a seed, which begin by giving them the first weights
again. Held-out tasks are evaluated before and after.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import pytest
import torch
from datasets import Dataset
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

from bench.frame import Row
from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.client.policy import HeldPolicy
from prorl_service.schemas import Rollout
from prorl_trl.async_rollouts import ProRLRolloutWorker, ProRLWeightTransfer
from prorl_trl.pushes import Pushes
from prorl_trl.weights import PolicyWeights
from recipes.demo.evaluate import evaluate, success
from recipes.demo.tasks import LIMITS, instances
from recipes.demo.train import TrainConfig, dataset_row, make_trainer, train_tasks
from recipes.demo.warm_start import WarmStart, warm_started
from tests import sglang_engine, vllm_engine
from tests.trl.async_training import SMALL, run_on_cpu
from tests.trl.test_async import largest_difference

CONTEXT = ("--max-model-len", "512", "--kv-cache-memory-bytes", str(2**28))
ON_CPU = ("--enforce-eager", "--no-enable-chunked-prefill", "--block-size", "32")
VLLM = {
    "vLLM": ("--dtype", "float32", *ON_CPU),
    "vLLM, fp32": ("--dtype", "float32", "--gpu-memory-utilization", "0.1"),
    "vLLM, bf16": ("--dtype", "bfloat16", "--gpu-memory-utilization", "0.1"),
}
"""Options of vLLM, keyed by the name of an engine."""
ENGINES = ("reference engine", "vLLM")
HELDOUT_PER_FAMILY = 50
LOGPROB_GAP = "sampling/sampling_logp_difference/max"
COMPARED = 16
"""Rollouts of the last policy whose logprobs are compared with the trainer's own."""


@dataclass(slots=True)
class Seen:
    """Measurements of one training."""

    update_s: list[float] = field(default_factory=list)
    """Seconds of each update of the weights, until all engines serve with them."""
    pushed: list[int] = field(default_factory=list)
    """Versions of the weights, from those that were there before on."""
    versions_wrong: int = 0
    """Number of rollouts with a token of a version that they must not have."""
    logprob_diff_max: float = 0.0
    """Largest difference of a logprob between engine and trainer while training. Where rollouts may
    be of an older policy than the trained one, TRL's figure says nothing about engines."""


Train = Callable[[Path, str, Path, TrainConfig, Seen], None]
"""Function that trains, and leaves the last policy in the directory `trained` of its output."""


def measure(
    seeds: Sequence[int],
    steps: int,
    *,
    engines: Sequence[str],
    trainers: Sequence[str] = (),
    use_cpu: bool = True,
) -> list[Row]:
    """`trainers`: some of `TRAINERS`, or all. They use a GPU unless `use_cpu`."""
    rows: list[Row] = []
    with TemporaryDirectory(prefix="prorl-bench-") as directory:
        for seed in seeds:
            model = warm_started(Path(directory) / "cache", WarmStart(seed=seed))
            for engine in engines:
                output = Path(directory) / f"{engine}-{seed}"
                with (
                    _engine(engine, model, output) as process,
                    local.service([process.url], log=output / "service.log") as service,
                ):
                    for name in trainers or TRAINERS:
                        config = TrainConfig(seed=seed, steps=steps, use_cpu=use_cpu)
                        found = _run(TRAINERS[name], model, service.url, output, config)
                        rows.append({"trainer": name, "engine": engine, **found})
                        print(rows[-1], flush=True)
    return rows


def _run(train: Train, model: Path, url: str, output: Path, config: TrainConfig) -> Row:
    heldout = [one.task() for one in instances("heldout", HELDOUT_PER_FAMILY, seed=config.seed)]
    seen = Seen()
    with HeldPolicy(url) as policy, RolloutClient(url, training=policy.key) as client:
        seen.pushed.append(client.load_weights(str(model)).version)
    with RolloutClient(url) as client:
        name = f"run{train.__name__}-{config.seed}"
        before = evaluate(client, heldout, n=2, name=f"{name}-before", limits=LIMITS)
        train(model, url, output, config, seen)
        after = evaluate(client, heldout, n=2, name=f"{name}-after", limits=LIMITS)
    compared = max(_difference(output / "trained", one) for one in after[:COMPARED])
    return {
        "seed": config.seed,
        "before": success(before),
        "after": success(after),
        "logprob_diff_max": max(seen.logprob_diff_max, compared),
        "versions_wrong": seen.versions_wrong,
        "update_s": round(median(seen.update_s), 3),
    }


def _sync(model: Path, url: str, output: Path, config: TrainConfig, seen: Seen) -> None:
    def observe(rollouts: Sequence[Rollout]) -> None:
        oldest, newest = seen.pushed[-2:][-1 - bool(config.dynamic_sampling)], seen.pushed[-1]
        seen.versions_wrong += sum(not _is_within(one, oldest, newest) for one in rollouts)

    send = Pushes._send

    def timed(pushes: Pushes, weights: PolicyWeights) -> int:
        began = time.monotonic()
        seen.pushed.append(send(pushes, weights))
        seen.update_s.append(time.monotonic() - began)
        return seen.pushed[-1]

    trainer = make_trainer(model, url, output, config, observe=observe)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pushes, "_send", timed)
        trainer.train()
        trainer.rollout_func.push_weights()
    if not config.dynamic_sampling:
        log = trainer.state.log_history
        seen.logprob_diff_max = max(entry[LOGPROB_GAP] for entry in log if LOGPROB_GAP in entry)
    trainer.model.save_pretrained(output / "trained")


def _dynamic(model: Path, url: str, output: Path, config: TrainConfig, seen: Seen) -> None:
    _sync(model, url, output, replace(config, dynamic_sampling=True), seen)


def _async(model: Path, url: str, output: Path, config: TrainConfig, seen: Seen) -> None:
    """Trains asynchronously, with a stand-in for TRL's CUDA kernel."""
    arguments = AsyncGRPOConfig(
        **SMALL
        | {
            "output_dir": str(output / "async"),
            "seed": config.seed,
            "max_steps": config.steps,
            "per_device_train_batch_size": config.groups_per_step * config.rollouts_per_group,
            "num_generations": config.rollouts_per_group,
            "max_completion_length": LIMITS.max_response_tokens,
            "learning_rate": config.learning_rate,
        }
    )
    dataset = Dataset.from_list([dataset_row(task) for task in train_tasks(config)])
    transfer = ProRLWeightTransfer(url)
    send = transfer.send_weights

    def send_weights(iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        seen.pushed.append(seen.pushed[-1] + 1)  # engines have it before the trainer knows
        began = time.monotonic()
        send(iterator)
        seen.update_s.append(time.monotonic() - began)

    def observe(rollouts: Sequence[Rollout]) -> None:
        oldest, newest = seen.pushed[0] + 1, seen.pushed[-1]
        seen.versions_wrong += sum(not _is_within(one, oldest, newest) for one in rollouts)

    transfer.send_weights = send_weights  # type: ignore[method-assign]
    worker = ProRLRolloutWorker(url, arguments, dataset, limits=LIMITS, observe=observe)
    with pytest.MonkeyPatch.context() as patch:
        run_on_cpu(patch)
        trainer = AsyncGRPOTrainer(
            model=str(model),
            args=arguments,
            train_dataset=dataset,
            rollout_worker=worker,
            weight_transfer=transfer,
        )
        trainer.train()
    trainer.model.save_pretrained(output / "trained")


TRAINERS: dict[str, Train] = {
    "GRPOTrainer": _sync,
    "GRPOTrainer, dynamic sampling": _dynamic,
    "AsyncGRPOTrainer": _async,
}


def _is_within(rollout: Rollout, oldest: int, newest: int) -> bool:
    first, last = rollout.oldest_policy_version, rollout.newest_policy_version
    return first is None or last is None or oldest <= first <= last <= newest


def _difference(trained: Path, rollout: Rollout) -> float:
    assert rollout.trajectory is not None
    (segment,) = rollout.trajectory.segments
    return largest_difference(trained, segment)


def _engine(kind: str, model: Path, output: Path) -> AbstractContextManager[local.LocalProcess]:
    if kind in VLLM:
        options, log = [*VLLM[kind], *CONTEXT], output / "vllm"
        return vllm_engine.vllm(vllm_engine.PYTHON, model, log=log, options=options)
    if kind == "SGLang":
        return sglang_engine.sglang(model, log=output / "sglang", max_model_len=int(CONTEXT[1]))
    return local.engine(model, log=output / "engine.log", options=CONTEXT[:2])
