"""Support for `trainer_mode=separate_async` on a CPU: checkpoint_engine.custom_backend_module.

The backend `file` hands the trainer's weights to other processes of this machine, in one file. In
addition, the weights that verl keeps while it trains on a mini-batch are copied: a CPU tensor's
`.cpu()` is not a copy, so they would change with the trained ones.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry
from verl.utils import fsdp_utils
from verl.workers.rollout.utils import ensure_async_iterator

POLL_S = 0.02

Weights = Iterable[tuple[str, torch.Tensor]]
Saved = tuple[dict[str, tuple[torch.Tensor, Any]], Any]


@CheckpointEngineRegistry.register("file")
class FileCheckpointEngine(CheckpointEngine):  # type: ignore[misc]
    """The first of the trainer's ranks writes; each rank of the rollouts reads."""

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self._is_master = is_master
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    def prepare(self) -> dict[str, Any]:
        if not self._is_master:
            return {}
        self._directory = tempfile.TemporaryDirectory()
        return {"file": Path(self._directory.name) / "model.safetensors"}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        (file,) = [one["file"] for one in metadata if one]
        return {"file": [file] * actor_wg_world_size}, {"file": [file] * rollout_world_size}

    def init_process_group(self, file: Path) -> None:
        self._file = file

    def finalize(self) -> None:
        if self._directory is not None:
            self._directory.cleanup()

    async def send_weights(self, weights: Weights, global_steps: int | None = None) -> None:
        """Gathers the weights, which takes every rank; the master writes the file."""
        tensors = {name: tensor async for name, tensor in ensure_async_iterator(weights)}
        if self._is_master:
            part = self._file.with_suffix(".part")
            await asyncio.to_thread(save_file, tensors, part)
            part.rename(self._file)

    async def receive_weights(
        self, global_steps: int | None = None
    ) -> AsyncIterator[tuple[str, torch.Tensor]]:
        while not self._file.exists():  # noqa: ASYNC110 - another process
            await asyncio.sleep(POLL_S)
        for item in (await asyncio.to_thread(load_file, self._file)).items():
            yield item


def _as_copies(save: Callable[[torch.nn.Module], Saved]) -> Callable[[torch.nn.Module], Saved]:
    @wraps(save)
    def save_copies(model: torch.nn.Module) -> Saved:
        tensors, spec = save(model)
        return {name: (one.clone(), own) for name, (one, own) in tensors.items()}, spec

    return save_copies


fsdp_utils.fsdp2_sharded_save_to_cpu = _as_copies(fsdp_utils.fsdp2_sharded_save_to_cpu)
