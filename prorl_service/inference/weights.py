"""Weights that trainers push, kept so that an engine that comes back can be given them again."""

import asyncio
import json
import os
import re
import uuid
from collections.abc import AsyncIterable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, ParamSpec, Self, TypeVar

from prorl_service.errors import InvalidRequest, ProRLError, WeightsRejected
from prorl_service.inference.identity import ModelIdentity
from prorl_service.inference.transfer import weight_file
from prorl_service.inference.transfer.ways import (
    Broadcast,
    WeightDirectory,
    WeightFile,
    WeightSource,
)

P = ParamSpec("P")
Done = TypeVar("Done")

OWN_FILE = re.compile(r"(weights-[0-9a-f]{32}\.(partial|safetensors)|probe-[0-9a-f]{32})")
"""Names of files that a spool, or a trainer in it, made; the spool may remove them."""
WRITE_BYTES = 4 * 2**20
"""Size of the pieces in which an upload is written to disk: each costs a switch of threads."""


class UploadStalled(InvalidRequest):
    """A client that sends weights has gone silent."""

    status = 408
    retryable = True


class WeightsGone(InvalidRequest):
    """A file of weights does not exist, perhaps removed by a restart of the service."""

    status = 410


class WeightsNotKept(ProRLError):
    """Weights cannot be written to the disk of the service."""

    status = 507


@dataclass(slots=True, eq=False)
class Weights:
    source: WeightSource
    version: int
    push: str = ""
    """Name that the trainer gave the push."""
    training: str | None = None
    """Id of the training that pushed them."""
    model: ModelIdentity | None = None
    """Model that the weights belong to; None until an engine has named it."""

    def fields(self) -> dict[str, Any]:
        is_streamed = isinstance(self.source, WeightFile)
        return {
            "path": str(self.source.path),
            "is_streamed": is_streamed,
            "is_adapter": isinstance(self.source, WeightFile) and self.source.is_adapter,
            "is_broadcast": isinstance(self.source, Broadcast),
            "version": self.version,
            "push": self.push,
            "training": self.training,
            "model": None if self.model is None else asdict(self.model),
        }

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        path, model = fields["path"], fields.get("model")
        identity = None if model is None else ModelIdentity(**model)
        source: WeightSource = WeightDirectory(path)
        if fields["is_streamed"]:
            source = WeightFile(Path(path), fields.get("is_adapter", False))
        elif fields.get("is_broadcast"):
            source = Broadcast()
        push, training = fields.get("push", ""), fields.get("training")
        return cls(source, fields["version"], push, training, identity)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Weights that were pushed while no engine was in reach, and refused by the first to return."""

    version: int
    reason: str
    training: str | None = None
    """Id of the training that pushed them."""

    def error(self) -> WeightsRejected:
        return WeightsRejected(
            f"the weights of version {self.version} were given up: {self.reason}",
            hint="the weights before them serve on; mend the policy, or go back to a checkpoint",
        )


@dataclass(frozen=True, slots=True)
class PushedWeights:
    """Weights that trainers have pushed, as the journal keeps them."""

    newest: Weights | None = None
    """Last weights that an engine has taken."""
    offered: Weights | None = None
    """Weights pushed later, for the first engine that comes back to take or refuse."""
    refusal: Refusal | None = None
    """Refusal that no push was told of."""

    def files(self) -> set[str]:
        return {str(one.source.path) for one in (self.newest, self.offered) if one is not None}

    def to_json(self) -> bytes:
        newest, offered = (one and one.fields() for one in (self.newest, self.offered))
        refusal = self.refusal and asdict(self.refusal)
        return json.dumps({"newest": newest, "offered": offered, "refusal": refusal}).encode()

    @classmethod
    def from_json(cls, text: bytes | None) -> Self:
        """`text`: None if no weights were pushed."""
        if text is None:
            return cls()
        fields = json.loads(text)
        if "path" in fields:  # of a service that kept the newest alone
            return cls(Weights.of(fields))
        newest, offered = (one and Weights.of(one) for one in (fields["newest"], fields["offered"]))
        return cls(newest, offered, fields["refusal"] and Refusal(**fields["refusal"]))


def source_at(path: Path) -> WeightSource:
    """Returns a file, or a directory that perhaps only the engines see, after a look at all values
    that can be seen from here. Raises `WeightsGone`, `WeightsRejected`."""
    if path.is_file():
        return WeightFile(path, weight_file.check(path).is_adapter)
    for file in sorted(path.glob("*.safetensors")):
        weight_file.check(file)
    if path.suffix == ".safetensors":
        raise WeightsGone(
            f"{path} does not exist", hint="write it again where GET /v1/weights says"
        )
    return WeightDirectory(str(path))


def check_directory(source: WeightSource) -> None:
    """Raises `InvalidRequest` for an empty one: an engine that loads it may lose its weights."""
    if not isinstance(source, WeightDirectory):
        return
    directory = Path(source.path)
    if directory.is_dir() and not any(directory.glob("*.safetensors")):
        raise InvalidRequest.of_field("path", f"{directory} holds no *.safetensors file")


class WeightSpool:
    """Weights on local disk, one safetensors file each, sent over HTTP or written by trainers that
    see the directory.

    A file gets its final name when it is complete, so a broken upload is never used. The caller
    removes files that are no longer needed; other files in the directory are left alone.
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
        partial = self.directory / f"weights-{uuid.uuid4().hex}.partial"
        file = await self._on_disk(_create, partial)
        try:
            try:
                received, piece, check = 0, bytearray(), weight_file.Check()
                upload = aiter(chunks)
                while (chunk := await self._next(upload, received)) is not None:
                    received += len(chunk)
                    piece += chunk
                    if len(piece) >= WRITE_BYTES:
                        await self._on_disk(_write, file, piece, check)
                        piece = bytearray()
                await self._on_disk(_write, file, piece, check)
                header = check.end()
            finally:
                await self._on_disk(file.close)
            path = await self._on_disk(partial.rename, partial.with_suffix(".safetensors"))
            return WeightFile(path, header.is_adapter)
        except BaseException:
            await asyncio.to_thread(partial.unlink, missing_ok=True)
            raise

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
            await asyncio.to_thread(source.path.unlink, missing_ok=True)


def _create(path: Path) -> BinaryIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("xb")


def _write(file: BinaryIO, piece: bytearray, check: weight_file.Check) -> None:
    check.add(piece)
    file.write(piece)


def _sync(path: Path) -> None:
    """Syncs the file and its name."""
    for one in (path, path.parent):
        descriptor = os.open(one, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
