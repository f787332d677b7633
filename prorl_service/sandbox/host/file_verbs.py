"""Files, layers and processes of a started sandbox, as requests to its execution server.

The server's answers are not trusted: what is larger than agreed is refused.
"""

import asyncio
import errno
import json
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from prorl_service.errors import AgentError, SandboxError
from prorl_service.sandbox.base import SandboxLimits
from prorl_service.sandbox.layers import PIECE_BYTES, Guard, Layer

FILE_TIMEOUT_S = 60.0
LAYER_TIMEOUT_S = 600.0
"""Seconds for a layer, which may have gigabytes; the stage's own budget is usually shorter."""
PROCESSES_TIMEOUT_S = 5.0
"""Seconds to end or suspend all processes of a sandbox."""

MAX_REFUSED_BYTES = 16 << 20
"""Maximum size of the list of what a guard refused of one piece."""


class FileVerbs(ABC):
    _limits: SandboxLimits

    @abstractmethod
    async def _request(
        self, operation: str, *, timeout_s: float, os_errors: bool = False, **others: Any
    ) -> tuple[dict[str, Any], bytes]:
        """Returns the server's answer. Raises `SandboxError`; with `os_errors`, what the operating
        system said as the matching `OSError`."""

    async def upload(self, path: str, content: bytes) -> None:
        """Writes a file. Raises the matching `OSError` when it cannot be written."""
        if not isinstance(content, bytes):
            raise AgentError(
                f"upload({path!r}) takes bytes, not {type(content).__name__}",
                hint="a text's bytes: text.encode()",
            )
        await self._file_request("upload", path, content)

    async def download(self, path: str, *, max_bytes: int | None = None) -> bytes:
        """Reads a file. Raises the matching `OSError` when it is missing or cannot be read."""
        limit = {} if max_bytes is None else {"max_bytes": max_bytes}
        return await self._file_request("download", path, b"", **limit)

    async def snapshot(self, path: str) -> bytes:
        return await self._file_request("snapshot", path)

    async def restore(self, path: str, tar: bytes) -> None:
        await self._file_request("restore", path, tar)

    async def end_processes(self) -> None:
        await self._request("end_processes", timeout_s=PROCESSES_TIMEOUT_S)

    @asynccontextmanager
    async def suspended(self) -> AsyncIterator[None]:
        await self._request("suspend_processes", timeout_s=PROCESSES_TIMEOUT_S)
        try:
            yield
        finally:
            await self._request("resume_processes", timeout_s=PROCESSES_TIMEOUT_S)

    async def save_layer(self, *, max_bytes: int) -> Layer:
        layer = Layer()
        await self._layer_request("save_layer", on_part=layer.append, max_bytes=max_bytes)
        return layer

    async def restore_layer(self, layer: Layer, guard: Guard) -> dict[str, int]:
        refused: Counter[str] = Counter()
        pieces = layer.pieces(min(PIECE_BYTES, self._limits.file_mb << 20))
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            parts = _Parts(MAX_REFUSED_BYTES)
            await self._layer_request(
                "restore_layer", payload=piece, on_part=parts.append, guard=guard._asdict()
            )
            refused.update(json.loads(parts.joined()))
        return dict(refused)

    async def _layer_request(self, operation: str, **arguments: Any) -> None:
        await self._request(operation, timeout_s=LAYER_TIMEOUT_S, os_errors=True, **arguments)

    async def _file_request(
        self, operation: str, path: str, content: bytes = b"", **arguments: Any
    ) -> bytes:
        max_bytes = self._limits.file_mb << 20
        if len(content) > max_bytes:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        parts = _Parts(max_bytes)
        _, last = await self._request(
            operation,
            timeout_s=FILE_TIMEOUT_S,
            os_errors=True,
            payload=content,
            on_part=parts.append,
            path=path,
            **arguments,
        )
        return parts.joined() or last


class _Parts:
    """A payload that comes in parts. Raises `SandboxError` when it is larger than agreed."""

    def __init__(self, max_bytes: int) -> None:
        self._parts: list[bytes] = []
        self._left = max_bytes

    def append(self, part: bytes) -> None:
        self._left -= len(part)
        if self._left < 0:
            raise SandboxError("the sandbox broke its protocol: a payload larger than agreed")
        self._parts.append(part)

    def joined(self) -> bytes:
        return b"".join(self._parts)
