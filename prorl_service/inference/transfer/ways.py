"""The ways in which an engine gets weights. Each has three steps, of which only the last touches
the engine's own: `offer` while it samples, `send` while it is paused, `swap`.

The reference engine is sent the file. vLLM fetches it with our plug-in (plugins/vllm), reads a
checkpoint's directory, or receives what a trainer broadcasts by NCCL. `Backend` handles pauses and
the versions in trajectories.
"""

import asyncio
import os
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from prorl_service.errors import BackendError, BackendRejected, BackendUnavailable
from prorl_service.inference.connections import Method, Progress
from prorl_service.inference.transfer import weight_file
from prorl_service.inference.transfer.handout import offered
from prorl_service.inference.transfer.intake import NO_PLUGIN
from prorl_service.inference.transfer.weight_file import unreadable

Shapes = Mapping[str, list[int]]
ADAPTER_PREFIX = "prorl-"
"""Prefix of the names of our adapters in an engine."""
OF_PLUGIN = "prorl: "
"""Prefix of the plug-in's own reasons."""


@dataclass(frozen=True, slots=True)
class WeightDirectory:
    """A checkpoint on a file system that the engine can read."""

    path: str

    def __str__(self) -> str:
        return "a directory"

    def only_file(self) -> Path | None:
        """Returns the checkpoint's weights if they are one file that the service sees, too."""
        try:
            files = list(Path(self.path).glob("*.safetensors"))
        except OSError:
            return None
        return files[0] if len(files) == 1 else None


@dataclass(frozen=True, slots=True)
class WeightFile:
    """A local safetensors file with the whole model, or with a LoRA adapter for it."""

    path: Path
    is_adapter: bool = False

    def __str__(self) -> str:
        return "a LoRA adapter" if self.is_adapter else "a file"


@dataclass(frozen=True, slots=True, eq=False)
class Broadcast:
    """Weights that a trainer broadcasts to the workers of a group of engines. No copy is kept."""

    manifest: Mapping[str, Any] = field(default_factory=dict)
    """vLLM's `update_info`: names, types and shapes of the tensors."""
    start: asyncio.Barrier | None = None
    """Barrier at which each engine, once paused, waits for the others."""
    path: str = ""
    """Empty: no file holds the weights."""

    def __str__(self) -> str:
        return "by NCCL"


WeightSource = WeightDirectory | WeightFile | Broadcast


class NotOffered(BackendRejected):
    """The engine has no such route, or was told not to serve it."""


class Call(Protocol):
    """`Backend._call`: makes one HTTP call to the engine; raises `BackendError`."""

    def __call__(
        self,
        method: Method,
        route: str,
        *,
        json: Any = None,
        data: BinaryIO | bytes = b"",
        on_progress: Progress = ...,
        read: Callable[[Any], Any] | None = None,
    ) -> Awaitable[Any]: ...


class Transfer(ABC):
    """One way of giving an engine weights. All methods raise `BackendError`."""

    model: str | None = None
    """Model name with which calls use these weights; None: the engine's default."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def offer(self, on_progress: Progress) -> None:  # noqa: B027 - not every way has it
        """Runs while the engine samples."""

    async def send(self, on_progress: Progress) -> None:  # noqa: B027 - as above
        """Runs while the engine is paused and still has its weights."""

    @abstractmethod
    async def swap(self, version: str) -> None: ...

    async def _label(self, version: str) -> None:
        with suppress(NotOffered):  # vLLM before 0.27, for which `Bracket` keeps the version
            await self._call("POST", "/update_weight_version", json={"new_version": version})


class Push(Transfer):
    """Sends the file to the reference engine, unless that can open it. The engine checks the whole
    file before it touches its weights."""

    def __init__(self, call: Call, file: WeightFile) -> None:
        super().__init__(call)
        self._path = file.path

    async def send(self, on_progress: Progress) -> None:
        await self._call("POST", "/start_weight_update")
        with _opened(self._path) as file:
            if not await self._is_opened(os.fstat(file.fileno()).st_size):
                await self._call("POST", "/update_weights", data=file, on_progress=on_progress)

    async def _is_opened(self, size: int) -> bool:
        offer = {"path": str(self._path), "size": size}
        is_opened: bool = await self._call(
            "POST", "/open_weights", json=offer, read=lambda answer: answer["is_opened"]
        )
        return is_opened

    async def swap(self, version: str) -> None:
        await self._call("POST", "/finish_weight_update", json={"weight_version": version})


class Fetch(Transfer):
    """Has vLLM fetch the file, or open it where it shares the service's file system."""

    def __init__(self, call: Call, path: Path, engine_url: str) -> None:
        super().__init__(call)
        self._path, self._url = path, engine_url

    async def offer(self, on_progress: Progress) -> None:
        header = await asyncio.to_thread(weight_file.read, self._path)
        await self._offer(header.shapes, on_progress)

    async def _offer(self, shapes: Shapes, on_progress: Progress, **more: Any) -> None:
        try:
            async with offered(self._path, self._url, on_progress) as offer:
                whole = {"path": str(self._path), "size": offer.size, "url": offer.url}
                info = {**whole, "shapes": shapes, **more}
                route = "/init_weight_transfer_engine"
                await self._call("POST", route, json={"init_info": info})
                await offer.transfers.drain()
                if offer.failure is not None:
                    raise BackendUnavailable(f"{self._url} took no weights: {offer.failure}")
        except OSError as error:
            raise unreadable(self._path, error) from error
        except (BackendRejected, BackendUnavailable):
            raise
        except BackendError as error:
            raise BackendRejected(
                f"{self._url} takes no weights: {error.message}",
                hint="" if OF_PLUGIN in error.message else NO_PLUGIN,
            ) from error

    async def swap(self, version: str) -> None:
        await self._load()
        await self._label(version)

    async def _load(self) -> None:
        await self._call("POST", "/start_weight_update")
        await self._call("POST", "/update_weights", json={"update_info": {}})
        await self._call("POST", "/finish_weight_update", json={})


class FetchAdapter(Fetch):
    """Has vLLM fetch a LoRA adapter into a directory of its own, and put it on its model.

    vLLM's route loads the first adapter of a kind. For later ones, the files are replaced and the
    loaded adapter is removed, so that the next call reads the files again. (Adapters loaded with
    the route's `load_inplace` are read again at every step.)
    """

    def __init__(self, call: Call, path: Path, engine_url: str, loaded: Mapping[str, str]) -> None:
        """`loaded`: directories of our adapters in the engine, keyed by name."""
        super().__init__(call, path, engine_url)
        self._loaded = loaded
        self._directory = ""

    async def offer(self, on_progress: Progress) -> None:
        header = await asyncio.to_thread(weight_file.read, self._path)
        self.model = f"{ADAPTER_PREFIX}{header.kind}"
        new = f"/tmp/{self.model}-{secrets.token_hex(8)}"
        self._directory = self._loaded.get(self.model, new)
        adapter = {"directory": self._directory, "config": header.adapter_config}
        await self._offer(header.shapes, on_progress, adapter=adapter)

    async def swap(self, version: str) -> None:
        await self._load()
        if self.model in self._loaded:
            await self._have_it_read_again()
        else:
            body = {"lora_name": self.model, "lora_path": self._directory}
            await self._call("POST", "/v1/load_lora_adapter", json=body)
        await self._label(version)

    async def _have_it_read_again(self) -> None:
        """Removes all adapters, since vLLM does not report this one's number. Each is read again
        when needed."""
        numbers = await self._rpc("list_loras")
        for number in re.findall(r"\d+", str(numbers)):
            await self._rpc("remove_lora", int(number))

    async def _rpc(self, method: str, *args: int) -> object:
        """Returns the first worker's answer: some executors turn a set into a list, others into
        text."""
        result: object = await self._call(
            "POST",
            "/collective_rpc",
            json={"method": method, "args": args},
            read=lambda answer: answer["results"][0],
        )
        return result


class Reload(Transfer):
    """Has vLLM load a checkpoint's directory."""

    def __init__(self, call: Call, directory: WeightDirectory) -> None:
        super().__init__(call)
        self._path = directory.path

    async def swap(self, version: str) -> None:
        reload = {"method": "reload_weights", "kwargs": {"weights_path": self._path}}
        await self._call("POST", "/collective_rpc", json=reload)
        await self._label(version)


class Receive(Transfer):
    """Has vLLM's workers take part in a trainer's broadcast, with vLLM's own backend `nccl`."""

    def __init__(self, call: Call, source: Broadcast) -> None:
        super().__init__(call)
        self._source = source

    async def send(self, on_progress: Progress) -> None:
        if self._source.start is not None:
            try:
                await self._source.start.wait()
            except asyncio.BrokenBarrierError:
                raise BackendUnavailable("another engine failed before the broadcast") from None

    async def swap(self, version: str) -> None:
        await self._call("POST", "/start_weight_update")
        body = {"update_info": self._source.manifest}
        await self._call("POST", "/update_weights", json=body)
        await self._call("POST", "/finish_weight_update", json={})
        await self._label(version)


def _opened(path: Path) -> BinaryIO:
    """Opens the file, not in a thread: a file opened there for a cancelled call would stay open."""
    try:
        return path.open("rb")
    except OSError as error:
        raise unreadable(path, error) from error
