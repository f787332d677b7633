"""AsyncGRPOTrainer for the async tests: stock, except for two things that need CUDA."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import trl
from packaging.version import Version
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, packing

from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.schemas import TERMINAL_STATES, Rollout
from prorl_trl.async_rollouts import (
    ProRLRolloutWorker,
    ProRLWeightTransfer,
    RolloutWorkerFailed,
)
from tests.trl.training import SERVICE_OPTIONS, TWO_TURNS, dataset

if Version(trl.__version__) < Version("1.16"):
    pytest.skip("the CPU patches need TRL 1.16 or newer", allow_module_level=True)

SMALL: dict[str, Any] = {
    "per_device_train_batch_size": 8,
    "num_generations": 4,
    "max_completion_length": 40,
    "max_steps": 4,
    "max_staleness": 2,
    "learning_rate": 1e-2,
    "token_budget": 0,
    "save_strategy": "no",
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "disable_tqdm": True,
}


class AsyncTrainings:
    """Workers and trainings of one test on one service; `observed` has all of their rollouts."""

    def __init__(self, url: str, policy: Path, output: Path) -> None:
        self.url, self.policy, self.output = url, policy, output
        self.observed: list[Rollout] = []

    def config(self, **options: Any) -> AsyncGRPOConfig:
        return AsyncGRPOConfig(output_dir=str(self.output), **SMALL | options)

    def worker(self, config: AsyncGRPOConfig | None = None, **given: Any) -> ProRLRolloutWorker:
        """`config`: None is that of a worker without a trainer. `given`: `url`, `faults`, `agent`
        and options of `ProRLRolloutWorker`; what is not given is as in `TWO_TURNS`."""
        data = dataset(given.pop("faults", [None] * 8), given.pop("agent", "letters"))
        options = {"observe": self.observed.extend, **TWO_TURNS, **given}
        config = config or self.config(max_inflight_tasks=8)
        return ProRLRolloutWorker(options.pop("url", self.url), config, data, **options)

    def trainer(
        self, config: AsyncGRPOConfig | None = None, *, policy: Path | None = None, **given: Any
    ) -> Any:
        """`given`: `peft_config` and `callbacks` of the trainer, and as for `worker`. The weights
        go to the service of the test, unless a `weights_url` is given."""
        config = config or self.config()
        arguments = {one: given.pop(one) for one in {"peft_config", "callbacks"} & given.keys()}
        weights_url = given.pop("weights_url", given.get("url", self.url))
        return AsyncGRPOTrainer(
            model=str(policy or self.policy),
            args=config,
            train_dataset=dataset([None] * 8),
            rollout_worker=self.worker(config, **given),
            weight_transfer=ProRLWeightTransfer(weights_url, deadline_s=60),
            **arguments,
        )

    def __call__(self, config: AsyncGRPOConfig | None = None, **given: Any) -> Any:
        """Returns a trainer that has trained."""
        trainer = self.trainer(config, **given)
        trainer.train()
        return trainer


def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        time.sleep(0.02)


def failure_of(worker: ProRLRolloutWorker) -> str:
    """Returns the failure that the trainer will see."""
    while True:
        try:
            worker.check_health(300)
        except RolloutWorkerFailed as error:
            return str(error)
        time.sleep(0.02)


@contextmanager
def started(worker: ProRLRolloutWorker) -> Iterator[ProRLRolloutWorker]:
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def is_idle(service_url: str) -> bool:
    with RolloutClient(service_url) as client:
        return client.status().rollouts.keys() <= TERMINAL_STATES


@contextmanager
def own_service(service_url: str, tmp_path: Path, port: int) -> Iterator[local.LocalProcess]:
    """Runs a service on the engine of `service_url`, whose weights it leaves alone."""
    with RolloutClient(service_url) as client:
        [engine] = client.backends()
    log = tmp_path / "service.log"
    with local.service([engine.url], log=log, port=port, options=SERVICE_OPTIONS) as service:
        yield service


def run_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the name of a CUDA device and a kernel from the hub."""
    kernels = SimpleNamespace(flash_attn_varlen_func=_attention)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "cpu")
    monkeypatch.setattr(packing, "_flash_attn", lambda: kernels)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    starts_q: torch.Tensor,
    starts_k: torch.Tensor,
    *_: int,
    softmax_scale: float,
    **__: Any,
) -> torch.Tensor:
    """Computes FlashAttention 3's varlen function: sequences end to end, causal from their ends."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    outputs = []
    for sequence in range(len(starts_q) - 1):
        q, k, v = (
            tensor[starts[sequence] : starts[sequence + 1]].transpose(0, 1)
            for tensor, starts in ((query, starts_q), (key, starts_k), (value, starts_k))
        )
        visible = torch.ones(q.shape[1], k.shape[1]).tril(k.shape[1] - q.shape[1]).bool()
        scores = (q @ k.transpose(1, 2) * softmax_scale).masked_fill(~visible, -torch.inf)
        outputs.append((scores.softmax(-1) @ v).transpose(0, 1))
    return torch.cat(outputs)
