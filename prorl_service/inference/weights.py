"""The newest weights, kept so that an engine which comes back can be given them again."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from prorl_service.errors import InvalidRequest
from prorl_service.inference.backend import WeightDirectory, WeightFile, WeightSource


@dataclass(frozen=True, slots=True)
class Weights:
    source: WeightSource
    version: int

    def to_json(self) -> bytes:
        is_streamed = isinstance(self.source, WeightFile)
        fields = {
            "path": str(self.source.path),
            "is_streamed": is_streamed,
            "version": self.version,
        }
        return json.dumps(fields).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        fields = json.loads(text)
        path = fields["path"]
        source = WeightFile(Path(path)) if fields["is_streamed"] else WeightDirectory(path)
        return cls(source, fields["version"])


def check_directory(source: WeightSource) -> None:
    """Raises `InvalidRequest` for an empty one: an engine told to load it may lose what it has."""
    if not isinstance(source, WeightDirectory):
        return
    directory = Path(source.path)
    if directory.is_dir() and not any(directory.glob("*.safetensors")):
        raise InvalidRequest.of_field("path", f"{directory} holds no *.safetensors file")


class WeightSpool:
    """Streamed weights on local disk: one safetensors file per version, all but the newest removed.

    Files are written under another name and then renamed, so a broken upload is never used. One
    upload at a time, and `keep_only` after each, failed or not.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def receive(self, chunks: AsyncIterable[bytes]) -> Path:
        await asyncio.to_thread(self._directory.mkdir, parents=True, exist_ok=True)
        partial = self._directory / f"{uuid.uuid4().hex}.partial"
        file = await asyncio.to_thread(partial.open, "wb")
        try:
            async for chunk in chunks:
                await asyncio.to_thread(file.write, chunk)
        finally:
            await asyncio.to_thread(file.close)
        return await asyncio.to_thread(partial.rename, partial.with_suffix(".safetensors"))

    async def keep_only(self, newest: Weights | None) -> None:
        kept = newest.source.path if newest and isinstance(newest.source, WeightFile) else None
        for path in await asyncio.to_thread(lambda: list(self._directory.glob("*"))):
            if path != kept:
                await asyncio.to_thread(path.unlink, missing_ok=True)
