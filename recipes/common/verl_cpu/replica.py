"""`rollout.name=tiny` in verl's terms: the replica starts the server, the rollout feeds it weights.

One server per rank of the trainer; tensor parallelism and several nodes are not supported.
`rollout.custom.step_s` makes the servers slow.
"""

import asyncio
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ray
import torch
from safetensors.torch import save_file
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica
from verl.workers.rollout.utils import ensure_async_iterator

from recipes.common.verl_cpu.server import TinyServer


def _actor_name(replica_rank: int, role: str = "server") -> str:
    return f"tiny_{role}_{replica_rank}"


class TinyReplica(RolloutReplica):  # type: ignore[misc]
    async def launch_servers(self) -> None:
        role = f"teacher{self.name_suffix}" if self.is_teacher_model else "server"
        server = (
            ray.remote(TinyServer)
            .options(
                name=_actor_name(self.replica_rank, role), max_concurrency=self.max_concurrency
            )
            .remote(
                self.replica_rank,
                self.model_config.path,
                max_model_len=self.config.max_model_len,
                max_tokens=self.config.response_length,
                step_s=(self.config.custom or {}).get("step_s", 0.0),
            )
        )
        await server.start.remote()
        self.servers = [server]
        self._server_handle = server
        self._server_address = f"127.0.0.1:{self.replica_rank}"  # a key; nothing listens there


class TinyRollout(BaseRollout):  # type: ignore[misc]
    """Lives in the process of the trainer whose weights it hands on."""

    def __init__(self, *args: Any, replica_rank: int = -1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.replica_rank = int(os.environ["RANK"]) if replica_rank == -1 else replica_rank
        self.is_leader_rank = True

    @property
    def _server(self) -> Any:
        return ray.get_actor(_actor_name(self.replica_rank))

    async def resume(self, tags: list[str]) -> None:
        await self._server.wake_up.remote(tags=tags)

    async def release(self) -> None:
        await self._server.sleep.remote()

    async def update_weights(
        self,
        weights: Iterable[tuple[str, torch.Tensor]],
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        **_: Any,
    ) -> None:
        """Sends the weights as a file, so that the server checks names and shapes as always."""
        if wire_format != "named_tensors":
            raise ValueError(f"on a CPU weights must come as named_tensors, not as {wire_format}")
        tensors: dict[str, torch.Tensor] = {}
        places = set[int]()
        async for name, tensor in ensure_async_iterator(weights):
            if tensor.data_ptr() not in places:  # tied weights: the file format takes one of them
                places.add(tensor.data_ptr())
                tensors[name] = tensor
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "model.safetensors"
            await asyncio.to_thread(save_file, tensors, file)
            await self._server.update_weights.remote(str(file), global_steps)
