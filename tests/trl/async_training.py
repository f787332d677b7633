"""AsyncGRPOTrainer for the async tests: stock, except for two things that need CUDA."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, packing

from prorl_service.schemas import Sampling
from prorl_trl.async_rollouts import ProRLRolloutWorker, ProRLWeightTransfer
from tests.trl.training import dataset

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
TWO_TURNS: dict[str, Any] = {
    "overlong": "keep",
    "sampling": Sampling(max_tokens_per_turn=8),
    "deadline_s": 60,
}


def make_config(output: Path, **options: Any) -> AsyncGRPOConfig:
    return AsyncGRPOConfig(output_dir=str(output), **SMALL | options)


def make_worker(
    url: str,
    config: AsyncGRPOConfig,
    *,
    faults: Sequence[str | None] = (None,) * 8,
    **arguments: Any,
) -> ProRLRolloutWorker:
    return ProRLRolloutWorker(url, config, dataset(faults), **TWO_TURNS | arguments)


def make_async_trainer(
    url: str, policy: Path, config: AsyncGRPOConfig, worker: ProRLRolloutWorker, **arguments: Any
) -> AsyncGRPOTrainer:
    return AsyncGRPOTrainer(
        model=str(policy),
        args=config,
        train_dataset=dataset([None] * 8),
        rollout_worker=worker,
        weight_transfer=ProRLWeightTransfer(url, deadline_s=60),
        **arguments,
    )


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
