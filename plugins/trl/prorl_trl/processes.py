"""Work of several training processes: what the main one does for all, and weights in shards (FSDP2)
that are gathered one by one while they are sent.

So no process has the whole model in memory. Gathering takes all processes: the main one, which
sends, announces what it reads next, and the others follow. Weights under ZeRO-3 and FSDP1 are not
gathered here, but all together.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from accelerate.utils import broadcast_object_list
from torch.distributed.tensor import DTensor

Value = TypeVar("Value")


def on_main(
    accelerator: Any, work: Callable[[], Value], meanwhile: Callable[[], None] = lambda: None
) -> Value:
    """Does `work` on the main process, `meanwhile` on the others; all return the value of `work` or
    raise its error."""
    value: Value | None = None
    error: Exception | None = None
    if accelerator.is_main_process:
        try:
            value = work()
        except Exception as caught:
            error = caught
    else:
        meanwhile()
    outcome = [value, f"{type(error).__name__}: {error}" if error else None]
    broadcast_object_list(outcome)
    if error is not None:
        raise error
    if outcome[1] is not None:
        raise RuntimeError(f"on the main process: {outcome[1]}")
    return outcome[0]  # type: ignore[return-value]


class Source(Protocol):
    """Weights by name; `read` may return this process's shard."""

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]: ...

    def read(self, name: str) -> torch.Tensor: ...


class Shards:
    def __init__(self, sources: Sequence[Source]) -> None:
        """`sources`: the same in all processes, with the same names in the same order."""
        self._sources = sources
        self._announced: deque[tuple[int, str]] = deque()

    def whole(self, source: int) -> "Whole":
        return Whole(self, source, self._sources[source].tensors)

    def announce(self, source: int) -> None:
        """Main process: all of `source` is read next. Weights announced before and not read are
        skipped."""
        self._skip()
        _broadcast(source)
        self._announced.extend((source, name) for name in self._sources[source].tensors)

    def read_next(self) -> torch.Tensor:
        """Main process: returns the next weight announced."""
        return self._gathered(*self._announced.popleft())

    def end(self) -> None:
        """Main process: nothing more is read."""
        self._skip()
        _broadcast(None)

    def follow(self) -> None:
        """All other processes: gathers what is announced; returns when the main one ends."""
        while (source := _broadcast(None)) is not None:
            for name in self._sources[source].tensors:
                self._gathered(source, name)

    def _skip(self) -> None:
        """Gathers the rest, since the other processes are about to gather it."""
        while self._announced:
            self.read_next()

    def _gathered(self, source: int, name: str) -> torch.Tensor:
        tensor = self._sources[source].read(name)
        whole: torch.Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        return whole


@dataclass(frozen=True, slots=True)
class Whole:
    """A source whose weights are gathered as the main process reads them."""

    shards: Shards
    source: int
    tensors: Mapping[str, torch.Tensor]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        self.shards.announce(self.source)
        for name in self.tensors:
            yield name, self.shards.read_next()


def _broadcast(source: int | None) -> int | None:
    """Returns what the main process gives."""
    message: list[Any] = [source]
    broadcast_object_list(message)
    received: int | None = message[0]
    return received
