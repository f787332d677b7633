"""The newest weights, kept so that an engine which comes back can be given them again."""

import asyncio
import json
import os
import re
import uuid
from collections.abc import AsyncIterable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, ParamSpec, Self, TypeVar

from prorl_service.errors import InvalidRequest, ProRLError
from prorl_service.inference.identity import ModelIdentity
from prorl_service.inference.transfer import WeightDirectory, WeightFile, WeightSource

P = ParamSpec("P")
Done = TypeVar("Done")

OWN_FILE = re.compile(r"weights-[0-9a-f]{32}\.(partial|safetensors)")
"""Names of files that a spool made, and may remove."""


class UploadStalled(InvalidRequest):
    """A client that sends weights has gone silent."""

    status = 408
    retryable = True


class WeightsNotKept(ProRLError):
    """Weights cannot be written to the disk of the service."""

    status = 507


@dataclass(slots=True, eq=False)
class Weights:
    source: WeightSource
    version: int
    model: ModelIdentity | None = None
    """Model that the weights belong to; None until an engine has named it."""

    def to_json(self) -> bytes:
        is_streamed = isinstance(self.source, WeightFile)
        fields = {
            "path": str(self.source.path),
            "is_streamed": is_streamed,
            "version": self.version,
            "model": None if self.model is None else asdict(self.model),
        }
        return json.dumps(fields).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        fields = json.loads(text)
        path, model = fields["path"], fields.get("model")
        source = WeightFile(Path(path)) if fields["is_streamed"] else WeightDirectory(path)
        return cls(source, fields["version"], None if model is None else ModelIdentity(**model))


def check_directory(source: WeightSource) -> None:
    """Raises `InvalidRequest` for an empty one: an engine told to load it may lose what it has."""
    if not isinstance(source, WeightDirectory):
        return
    directory = Path(source.path)
    if directory.is_dir() and not any(directory.glob("*.safetensors")):
        raise InvalidRequest.of_field("path", f"{directory} holds no *.safetensors file")


class WeightSpool:
    """Streamed weights on local disk, a safetensors file each.

    A file is on disk under its final name before it is used, so a broken upload never is. The
    caller removes what is no longer needed; files of others in the directory are left alone.
    """

    def __init__(self, directory: Path, *, silence_s: float) -> None:
        """`silence_s`: how long an upload may send nothing."""
        self._directory = directory
        self._silence_s = silence_s

    def sweep(self, newest: Weights | None) -> None:
        """Remove what a process that was killed left."""
        kept = None if newest is None else newest.source.path
        for path in self._directory.glob("weights-*"):
            if OWN_FILE.fullmatch(path.name) and path != kept:
                path.unlink(missing_ok=True)

    async def receive(self, chunks: AsyncIterable[bytes]) -> Path:
        """Raises `UploadStalled`, `WeightsNotKept`, what `chunks` raises; nothing is kept then."""
        partial = self._directory / f"weights-{uuid.uuid4().hex}.partial"
        file = await self._on_disk(_create, partial)
        try:
            try:
                received, upload = 0, aiter(chunks)
                while (chunk := await self._next(upload, received)) is not None:
                    received += await self._on_disk(file.write, chunk)
                await self._on_disk(_sync, file)
            finally:
                await self._on_disk(file.close)
            return await self._on_disk(_publish, partial)
        except BaseException:
            await asyncio.to_thread(partial.unlink, missing_ok=True)
            raise

    async def _on_disk(self, work: Callable[P, Done], *args: P.args, **kwargs: P.kwargs) -> Done:
        """Does `work` in a thread. Raises `WeightsNotKept`."""
        try:
            return await asyncio.to_thread(work, *args, **kwargs)
        except OSError as error:
            raise WeightsNotKept(
                f"the weights cannot be written to {self._directory}: {error.strerror}",
                hint="free space there, then push them again",
            ) from error

    async def _next(self, upload: Any, received: int) -> bytes | None:
        budget = asyncio.timeout(self._silence_s)
        try:
            async with budget:
                return await anext(upload, None)
        except TimeoutError:
            if not budget.expired():
                raise
            raise UploadStalled(
                f"the upload stalled after {received} bytes: silent for {self._silence_s:g} s",
                hint="push the weights again",
            ) from None

    async def remove(self, source: WeightSource) -> None:
        """If it is one of the spool's own files."""
        if (
            isinstance(source, WeightFile)
            and source.path.parent == self._directory
            and OWN_FILE.fullmatch(source.path.name)
        ):
            await asyncio.to_thread(source.path.unlink, missing_ok=True)


def _create(path: Path) -> BinaryIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("xb")


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _publish(partial: Path) -> Path:
    """Give it its final name, which survives a power cut as well."""
    path = partial.rename(partial.with_suffix(".safetensors"))
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return path
