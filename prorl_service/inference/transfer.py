"""The ways by which an engine gets weights. Each has three steps, of which only the last touches
the engine's own: `offer` while it samples, `send` while it is paused, `swap`.

The reference engine is sent the file. vLLM fetches it, by our plug-in (plugins/vllm), or reads a
checkpoint's directory. Pauses and versions in trajectories are `Backend`'s.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import orjson

from prorl_service.errors import BackendError, BackendRejected, BackendUnavailable
from prorl_service.inference.connections import Method
from prorl_service.inference.handout import offered

NO_PLUGIN = (
    'start vLLM with `--weight-transfer-config \'{"backend": "prorl"}\'` and prorl-vllm '
    "installed, or give weights by a directory that both see"
)

OF_PLUGIN = "prorl: "
"""Begin of the plug-in's own reasons."""
MAX_HEADER_BYTES = 100 * 10**6
"""Limit of the format."""


@dataclass(frozen=True, slots=True)
class WeightDirectory:
    """A checkpoint on a file system that the engine can read."""

    path: str


@dataclass(frozen=True, slots=True)
class WeightFile:
    """A local safetensors file with the whole model."""

    path: Path


WeightSource = WeightDirectory | WeightFile


class Call(Protocol):
    """`Backend`'s: one HTTP call to the engine; raises `BackendError`."""

    def __call__(
        self, method: Method, route: str, *, json: Any = None, data: BinaryIO | bytes = b""
    ) -> Awaitable[Any]: ...


class Transfer(ABC):
    """All methods raise `BackendError`."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def offer(self) -> None:  # noqa: B027 - not every way has this step
        """Done while the engine samples."""

    async def send(self) -> None:  # noqa: B027 - as above
        """Done while the engine is paused and has its weights still."""

    @abstractmethod
    async def swap(self, version: str) -> None: ...

    async def _label(self, version: str) -> None:
        await self._call("POST", "/update_weight_version", json={"new_version": version})


class Push(Transfer):
    """Sends the file; the engine checks it whole before it touches its weights."""

    def __init__(self, call: Call, file: WeightFile) -> None:
        super().__init__(call)
        self._path = file.path

    async def send(self) -> None:
        await self._call("POST", "/start_weight_update")
        with _opened(self._path) as file:
            await self._call("POST", "/update_weights", data=file)

    async def swap(self, version: str) -> None:
        await self._call("POST", "/finish_weight_update", json={"weight_version": version})


class Pull(Transfer):
    """Has vLLM fetch the file, or open it where it shares the service's file system."""

    def __init__(self, call: Call, file: WeightFile, engine_url: str) -> None:
        super().__init__(call)
        self._path, self._url = file.path, engine_url

    async def offer(self) -> None:
        shapes = await asyncio.to_thread(_shapes_of, self._path)
        try:
            async with offered(self._path, self._url) as offer:
                info = {
                    "path": str(self._path),
                    "size": offer.size,
                    "url": offer.url,
                    "shapes": shapes,
                }
                route = "/init_weight_transfer_engine"
                await self._call("POST", route, json={"init_info": info})
                await offer.transferred()
                if offer.failure is not None:
                    raise BackendUnavailable(f"{self._url} took no weights: {offer.failure}")
        except OSError as error:
            raise _unreadable(self._path, error) from error
        except (BackendRejected, BackendUnavailable):
            raise
        except BackendError as error:
            raise BackendRejected(
                f"{self._url} takes no weights: {error.message}",
                hint="" if OF_PLUGIN in error.message else NO_PLUGIN,
            ) from error

    async def swap(self, version: str) -> None:
        await self._call("POST", "/start_weight_update")
        await self._call("POST", "/update_weights", json={"update_info": {}})
        await self._call("POST", "/finish_weight_update", json={})
        await self._label(version)


class Reload(Transfer):
    """Has vLLM load a checkpoint's directory."""

    def __init__(self, call: Call, directory: WeightDirectory) -> None:
        super().__init__(call)
        self._path = directory.path

    async def swap(self, version: str) -> None:
        reload = {"method": "reload_weights", "kwargs": {"weights_path": self._path}}
        await self._call("POST", "/collective_rpc", json=reload)
        await self._label(version)


def _opened(path: Path) -> BinaryIO:
    """Not in a thread: a file that it opens for a call that is cancelled stays open."""
    try:
        return path.open("rb")
    except OSError as error:
        raise _unreadable(path, error) from error


def _shapes_of(path: Path) -> dict[str, list[int]]:
    """Shape of each tensor, keyed by name. Raises `BackendRejected` for what is no whole
    safetensors file: vLLM would find out when it has lost the weights before."""
    try:
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            entries = orjson.loads(file.read(min(header_bytes, MAX_HEADER_BYTES)))
            entries.pop("__metadata__", None)
            end = max(entry["data_offsets"][1] for entry in entries.values())
            if path.stat().st_size == 8 + header_bytes + end:
                return {name: entry["shape"] for name, entry in entries.items()}
    except OSError as error:
        raise _unreadable(path, error) from error
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        pass
    raise BackendRejected(
        f"{path.name} is no whole safetensors file", hint="push the weights again"
    )


def _unreadable(path: Path, error: OSError) -> BackendRejected:
    return BackendRejected(
        f"the weights in {path} cannot be read: {error.strerror}", hint="push weights again"
    )
