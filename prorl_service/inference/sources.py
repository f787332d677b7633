"""Sources of weights for engines: a directory, a file, or a trainer's broadcast."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prorl_service.errors import BackendUnavailable, InvalidRequest
from prorl_service.inference import tensor_file


class WeightsGone(InvalidRequest):
    """A file of weights does not exist, perhaps removed by a restart of the service."""

    answer_status = 410


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

    def check(self) -> None:
        """Raises `InvalidRequest` for an empty one: an engine that loads it may lose its
        weights."""
        directory = Path(self.path)
        if directory.is_dir() and not any(directory.glob("*.safetensors")):
            raise InvalidRequest.of_field("path", f"{directory} holds no *.safetensors file")


@dataclass(frozen=True, slots=True)
class WeightFile:
    """A local safetensors file with the whole model, or with a LoRA adapter for it."""

    path: Path
    is_adapter: bool = False
    digest: str = ""
    """SHA-256 of a file that was sent over HTTP, in hexadecimal digits; "" for another."""
    base: str = ""
    """Name of the file from which `difference` is one; "" if there is none."""

    @property
    def difference(self) -> Path:
        """Path of the difference, which may be missing."""
        return self.path.with_suffix(".difference")

    def __str__(self) -> str:
        if self.is_adapter:
            return "a LoRA adapter"
        return "a difference" if self.base else "a file"


@dataclass(frozen=True, slots=True, eq=False)
class Broadcast:
    """Weights that a trainer broadcasts to the workers of a group of engines. No copy is kept."""

    manifest: Mapping[str, Any] = field(default_factory=dict)
    """Names, types and shapes of the tensors: vLLM's `update_info`, or SGLang's fields."""
    start: asyncio.Barrier | None = None
    """Barrier at which each engine, once paused, waits for the others."""
    path: str = ""
    """Empty: no file holds the weights."""

    def __str__(self) -> str:
        return "by NCCL"

    async def meet(self) -> None:
        """Waits for the other engines. Raises `BackendUnavailable`."""
        if self.start is not None:
            try:
                await self.start.wait()
            except asyncio.BrokenBarrierError:
                raise BackendUnavailable("another engine failed before the broadcast") from None


WeightSource = WeightDirectory | WeightFile | Broadcast


def source_at(path: Path) -> WeightSource:
    """Returns a file, or a directory that perhaps only the engines see, after a look at all values
    that can be seen from here. Raises `WeightsGone`, `WeightsRejected`."""
    if path.is_file():
        return WeightFile(path, tensor_file.check(path).is_adapter)
    for file in sorted(path.glob("*.safetensors")):
        tensor_file.check(file)
    if path.suffix == ".safetensors":
        raise WeightsGone(
            f"{path} does not exist", hint="write it again where GET /v1/weights says"
        )
    return WeightDirectory(str(path))
