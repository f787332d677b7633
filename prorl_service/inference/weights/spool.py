"""Files of weights on local disk, from which an engine that comes back is given them again."""

import asyncio
import os
import re
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, ParamSpec, TypeVar

from prorl_service.errors import InvalidRequest, ProRLError
from prorl_service.inference import tensor_file
from prorl_service.inference.sources import WeightFile, WeightSource
from prorl_service.utils import differences

P = ParamSpec("P")
Done = TypeVar("Done")

OWN_FILE = re.compile(
    r"(weights-[0-9a-f]{32}\.(partial|safetensors|difference)|probe-[0-9a-f]{32})"
)
"""Names of files that a spool, or a trainer in it, made; the spool may remove them."""
WRITE_BYTES = 4 * 2**20
"""Size of the pieces in which an upload is written to disk: each costs a switch of threads."""


class UploadStalled(InvalidRequest):
    """A client that sends weights has gone silent."""

    answer_status = 408
    retryable = True


class WeightsNotKept(ProRLError):
    """Weights cannot be written to the disk of the service."""

    answer_status = 507


class DifferenceUnusable(InvalidRequest):
    """A difference does not lead from weights that the service has to what it says."""

    answer_status = 412

    def __init__(self, reason: str) -> None:
        super().__init__(f"the difference cannot be used: {reason}", hint="send the whole file")


class WeightSpool:
    """Weights on local disk, one safetensors file each, sent over HTTP or written by trainers that
    see the directory.

    A file gets its final name when it is complete, so a broken upload is never used. A difference
    is kept next to the whole file that it led to. The caller removes files that are no longer
    needed; other files in the directory are left alone.
    """

    def __init__(self, directory: Path, *, silence_s: float) -> None:
        """`silence_s`: how long an upload may send nothing."""
        self.directory = directory
        self.probe = f"probe-{uuid.uuid4().hex}"
        """Name of a file by which trainers know that they see the same directory."""
        self._silence_s = silence_s

    def open(self, kept: Collection[str]) -> None:
        """Removes the files of a killed process, but those `kept`, and creates the directory."""
        self.close(kept)
        with suppress(OSError):  # the next upload reports the reason
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.directory / self.probe).touch()

    def close(self, kept: Collection[str]) -> None:
        for path in self.directory.glob("*"):
            if OWN_FILE.fullmatch(path.name) and str(path) not in kept:
                path.unlink(missing_ok=True)
        with suppress(OSError):  # it is not empty
            self.directory.rmdir()

    async def receive(self, chunks: AsyncIterable[bytes]) -> WeightFile:
        """Writes an upload to a file, not yet safe from a power cut; see `sync`. Raises
        `UploadStalled`, `WeightsNotKept`, `WeightsRejected`, and what `chunks` raises; nothing is
        kept then."""
        partial, check, digest = self._new(), tensor_file.TensorCheck(), sha256()
        async with _removed_on_failure(partial):
            await self._write(partial, chunks, check.add, digest.update)
            header = check.end()
            path = await self._on_disk(partial.rename, partial.with_suffix(".safetensors"))
            return WeightFile(path, header.is_adapter, digest.hexdigest())

    async def receive_difference(
        self, chunks: AsyncIterable[bytes], base: WeightFile
    ) -> WeightFile:
        """Writes an upload, and the file to which it leads from `base`. Raises like `receive`, and
        `DifferenceUnusable`."""
        partial = self._new()
        difference = partial.with_suffix(".difference")
        async with _removed_on_failure(partial, difference):
            await self._write(difference, chunks)
            return await self._on_disk(_patch, base, difference, partial)

    def _new(self) -> Path:
        return self.directory / f"weights-{uuid.uuid4().hex}.partial"

    async def _write(
        self, path: Path, chunks: AsyncIterable[bytes], *readers: Callable[[bytearray], None]
    ) -> None:
        """Writes an upload to a new file. `readers`: called with each piece before."""
        file = await self._on_disk(_create, path)
        try:
            received, piece, upload = 0, bytearray(), aiter(chunks)
            while (chunk := await self._next(upload, received)) is not None:
                received += len(chunk)
                piece += chunk
                if len(piece) >= WRITE_BYTES:
                    await self._on_disk(_add, file, piece, readers)
                    piece = bytearray()
            await self._on_disk(_add, file, piece, readers)
        finally:
            await self._on_disk(file.close)

    async def sync(self, source: WeightSource) -> None:
        """Returns once `source`, if a file, survives a power cut. Raises `WeightsNotKept`."""
        if isinstance(source, WeightFile):
            await self._on_disk(_sync, source.path)

    async def _on_disk(self, work: Callable[P, Done], *args: P.args, **kwargs: P.kwargs) -> Done:
        """Does `work` in a thread. Raises `WeightsNotKept`."""
        try:
            return await asyncio.to_thread(work, *args, **kwargs)
        except OSError as error:
            raise WeightsNotKept(
                f"the weights cannot be written to {self.directory}: {error.strerror}",
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
        """Removes `source` if it is one of the spool's own files."""
        if (
            isinstance(source, WeightFile)
            and source.path.parent == self.directory
            and OWN_FILE.fullmatch(source.path.name)
        ):
            for path in (source.path, source.difference):
                await asyncio.to_thread(path.unlink, missing_ok=True)


@asynccontextmanager
async def _removed_on_failure(*paths: Path) -> AsyncIterator[None]:
    try:
        yield
    except BaseException:
        for path in paths:
            with suppress(OSError):
                await asyncio.to_thread(path.unlink)
        raise


def _create(path: Path) -> BinaryIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("xb")


def _add(file: BinaryIO, piece: bytearray, readers: Iterable[Callable[[bytearray], None]]) -> None:
    for read in readers:
        read(piece)
    file.write(piece)


def _patch(base: WeightFile, difference: Path, partial: Path) -> WeightFile:
    """Raises `DifferenceUnusable`, `WeightsRejected`, `OSError`."""
    try:
        with (
            base.path.open("rb") as old,
            difference.open("rb") as changes,
            partial.open("xb") as new,
        ):
            digest = differences.apply(old, changes, new)
    except FileNotFoundError:
        raise DifferenceUnusable("its base is gone") from None
    except differences.BrokenDifference as error:
        raise DifferenceUnusable(str(error)) from None
    tensor_file.check(partial)
    path = partial.rename(partial.with_suffix(".safetensors"))
    return WeightFile(path, digest=digest, base=base.path.name)


def _sync(path: Path) -> None:
    """Syncs the file and its name."""
    for one in (path, path.parent):
        descriptor = os.open(one, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
