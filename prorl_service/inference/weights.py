"""The newest weights, kept so that an engine which comes back can be given them again."""

import asyncio
import shutil
from collections.abc import AsyncIterable
from dataclasses import dataclass
from pathlib import Path

from prorl_service.inference.backend import WeightSource


@dataclass(frozen=True, slots=True)
class Weights:
    source: WeightSource
    version: int


class WeightSpool:
    """Streamed weights on local disk: one safetensors file per version, all but the newest removed.

    Files are written under another name and then renamed, so a broken upload is never used.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._uploads = 0

    async def receive(self, chunks: AsyncIterable[bytes]) -> Path:
        await asyncio.to_thread(self._directory.mkdir, parents=True, exist_ok=True)
        self._uploads += 1
        partial = self._directory / f"{self._uploads}.partial"
        file = await asyncio.to_thread(partial.open, "wb")
        try:
            async for chunk in chunks:
                await asyncio.to_thread(file.write, chunk)
        finally:
            await asyncio.to_thread(file.close)
        return await asyncio.to_thread(partial.rename, partial.with_suffix(".safetensors"))

    async def keep_only(self, newest: Path) -> None:
        for path in await asyncio.to_thread(lambda: list(self._directory.iterdir())):
            if path != newest:
                await asyncio.to_thread(path.unlink, missing_ok=True)

    async def remove(self) -> None:
        await asyncio.to_thread(shutil.rmtree, self._directory, ignore_errors=True)
