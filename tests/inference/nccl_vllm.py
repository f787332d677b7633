"""Stand-ins for both sides of vLLM's weight transfer by NCCL, which needs GPUs.

`NcclVllm` is an engine with the routes of 0.28 to 0.33 (entrypoints/rl/online/api_router.py).
`installed` replaces vLLM's modules by those of 0.32 or 0.33; their trainer makes the same calls, in
the same order, as distributed/weight_transfer/nccl_engine.py, `NCCLTrainerWeightTransferEngine`.
Plain sockets carry the weights between the two. As with NCCL, a sender waits forever for a receiver
that does not come.
"""

import asyncio
import socket
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import blake2b
from types import ModuleType
from typing import Any, ClassVar

import pytest
import torch
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from prorl_service.local import free_port
from prorl_service.testing.loopback import Handler
from tests.inference.old_vllm import OldVllm

JOINED = b"j"
TAKEN = b"t"


class NcclVllm(OldVllm):
    """vLLM 0.31 with `--weight-transfer-config '{"backend": "nccl"}'`."""

    def __init__(self, root: str, workers: int) -> None:
        self.workers = workers
        self.steps: list[str] = []
        """Routes that change something, in the order of their calls."""
        self.ranks: list[int] = []
        self.tensors: dict[str, torch.Tensor] = {}
        self.fails_to_pause = False
        self._announced: dict[str, Any] = {}
        self._sockets: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        super().__init__((0, 31), root=root)

    def restart(self) -> None:
        super().restart()
        self._leave()

    def routes(self) -> Mapping[str, Handler]:
        return {
            **super().routes(),
            "/get_world_size": self._world_size,
            "/init_weight_transfer_engine": self._join,
            "/start_weight_update": self._nothing,
            "/update_weights": self._receive,
            "/finish_weight_update": self._nothing,
        }

    async def respond(self, request: Request) -> Response:
        path = request.url.path
        if request.method == "POST" and "generate" not in path:
            self.steps.append(path.removeprefix("/"))
        if path == "/pause" and self.fails_to_pause:
            return JSONResponse({}, status_code=500)
        return await super().respond(request)

    def _config(self) -> dict[str, Any]:
        return {**super()._config(), "weight_transfer_config": {"backend": "nccl"}}

    def _leave(self) -> None:
        for _, writer in self._sockets:
            writer.close()
        self._sockets = []

    async def _world_size(self, _: Request) -> Response:
        return JSONResponse({"world_size": self.workers})

    async def _join(self, request: Request) -> Response:
        info = (await request.json())["init_info"]
        self.ranks = [info["rank_offset"] + index for index in range(self.workers)]
        assert max(self.ranks) < info["world_size"]
        self._leave()
        for rank in self.ranks:
            where = (info["master_address"], info["master_port"])
            reader, writer = await asyncio.open_connection(*where)
            writer.write(bytes([rank]))
            self._sockets.append((reader, writer))
        for reader, _ in self._sockets:
            assert await reader.readexactly(1) == JOINED
        return JSONResponse({})

    async def _receive(self, request: Request) -> Response:
        assert self.paused.is_set()
        info = (await request.json())["update_info"]
        if not info["names"]:  # as before
            info = self._announced
        self._announced = info
        for name, kind, shape in zip(
            info["names"], info["dtype_names"], info["shapes"], strict=True
        ):
            tensor = torch.empty(shape, dtype=getattr(torch, kind))
            for reader, writer in self._sockets:
                data = await reader.readexactly(tensor.numel() * tensor.itemsize)
                writer.write(TAKEN)
            flat = torch.frombuffer(bytearray(data), dtype=tensor.dtype)
            self.tensors[name] = flat.reshape(shape)
        self.weights = digest_of(self.tensors)
        return JSONResponse({})


def digest_of(tensors: dict[str, torch.Tensor]) -> str:
    digest = blake2b()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@dataclass
class ParamMeta:
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass
class TrainerInitInfo:
    master_address: str
    master_port: int
    world_size: int
    rank: int


class TrainerEngine:
    opened: ClassVar[list["TrainerEngine"]] = []
    of_033 = False

    def __init__(self, client: Any, source: Any) -> None:
        self.client, self.source = client, source
        self._sent: list[ParamMeta] = []
        self.workers: list[socket.socket] = []
        self.opened.append(self)

    @classmethod
    def trainer_init(cls, init_info: TrainerInitInfo, *, client: Any, source: Any) -> Any:
        assert not cls.of_033 or source.implements_iter_full()
        engine = cls(client, source)
        payload = {**asdict(init_info), "rank_offset": 1, "packed": True}
        del payload["rank"]
        with (
            socket.create_server((init_info.master_address, init_info.master_port)) as server,
            ThreadPoolExecutor(1) as pool,
        ):
            joined = pool.submit(client.init_weight_transfer_engine, payload)
            engine.workers = [server.accept()[0] for _ in range(init_info.world_size - 1)]
            ranks = sorted(worker.recv(1)[0] for worker in engine.workers)
            assert ranks == list(range(1, init_info.world_size))
            for worker in engine.workers:
                worker.sendall(JOINED)
            joined.result()
        return engine

    def send_weights(self) -> None:
        meta = self.source.metadata if self.of_033 else self.source.metadata()
        told = [] if self.of_033 and meta == self._sent else meta
        self._sent = meta
        info = {
            "names": [one.name for one in told],
            "dtype_names": [str(one.dtype).removeprefix("torch.") for one in told],
            "shapes": [list(one.shape) for one in told],
        }
        self.client.start_weight_update()
        pool = ThreadPoolExecutor(1)
        try:
            received = pool.submit(self.client.update_weights, info)
            self._broadcast(meta)
            received.result()
        finally:
            pool.shutdown(wait=False)
        self.client.finish_weight_update()

    def _broadcast(self, meta: list[ParamMeta]) -> None:
        pairs = self.source.iter_full() if self.of_033 else self.source
        for (name, tensor), declared in zip(pairs, meta, strict=True):
            assert declared == ParamMeta(name, tensor.dtype, tuple(tensor.shape))
            data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            for worker in self.workers:
                worker.sendall(data)
            for worker in self.workers:
                assert worker.recv(1) == TAKEN


@contextmanager
def installed(patch: pytest.MonkeyPatch, *, of_033: bool) -> Iterator[None]:
    """Replaces the modules of vLLM that a broadcast imports by these stand-ins."""
    source = type("WeightSource", (), {"iter_full": None} if of_033 else {})
    patch.setattr(TrainerEngine, "of_033", of_033)
    transfer = "vllm.distributed.weight_transfer"
    contents: dict[str, dict[str, Any]] = {
        "vllm": {},
        "vllm.distributed": {},
        transfer: {},
        f"{transfer}.base": {"ParamMeta": ParamMeta, "WeightSource": source},
        f"{transfer}.nccl_engine": {
            "NCCLTrainerInitInfo": TrainerInitInfo,
            "NCCLTrainerWeightTransferEngine": TrainerEngine,
        },
        "vllm.utils": {},
        "vllm.utils.network_utils": {"get_ip": lambda: "127.0.0.1", "get_open_port": free_port},
    }
    for name, content in contents.items():
        module = ModuleType(name)
        vars(module).update(content)
        patch.setitem(sys.modules, name, module)
    yield
    while TrainerEngine.opened:
        for worker in TrainerEngine.opened.pop().workers:
            worker.close()
