"""An engine that answers after a time drawn at random, and counts the seconds that it was asked to
take: what its callers waste shows in what is missing. With equal times, rollouts begun together
would stay in step, and each of their turns would wait for the processor."""

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.testing import StubEngine
from prorl_service.tokens.chat import ChatFormat

REPLY = list(range(40, 104))
"""Token ids of a reply, before the end of its turn."""


class WaitingEngine(StubEngine):
    """A call takes from half to one and a half of `mean_s` seconds."""

    mean_s = 10.0
    _served_s = 0.0
    _random = random.Random(1)

    async def _sample(self) -> None:
        await self._running.wait()
        wait_s = self.mean_s * self._random.uniform(0.5, 1.5)
        call, began = object(), time.monotonic()
        self._under_way[call] = (began, wait_s)
        try:
            await asyncio.sleep(wait_s)
        finally:
            del self._under_way[call]
            self._served_s += min(wait_s, time.monotonic() - began)

    async def __aenter__(self) -> Self:
        self._under_way: dict[object, tuple[float, float]] = {}
        return await super().__aenter__()

    def served_s(self) -> float:
        """Returns the seconds of all calls so far. One that is late counts as if it were not."""
        now, calls = time.monotonic(), [*self._under_way.values()]
        return self._served_s + sum(min(wait_s, now - began) for began, wait_s in calls)


@contextmanager
def waiting_engine(place: Path) -> Iterator[WaitingEngine]:
    build_tiny_model(place / "model")
    end = ChatFormat.load(place / "model").end_of_turn_id
    engine = WaitingEngine(place / "model", lambda _: [*REPLY, end])
    with engine.in_thread() as running:
        yield running
