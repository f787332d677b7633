"""Coroutines and async generators for callers that block."""

import asyncio
from collections.abc import AsyncGenerator, Iterator

import pytest

from prorl_service.client.blocking import Blocking


@pytest.fixture
def blocking() -> Iterator[Blocking]:
    started = Blocking()
    yield started
    started.close()


async def fail() -> None:
    raise ValueError("as it should")


class Counting:
    is_closed = False

    async def numbers(self, *, end: int) -> AsyncGenerator[int, None]:
        try:
            for number in range(end):
                await asyncio.sleep(0)
                yield number
            if end > 3:
                await fail()
        finally:
            await asyncio.sleep(0.01)
            self.is_closed = True


def test_a_call_returns_or_raises(blocking: Blocking) -> None:
    assert blocking.call(asyncio.sleep(0, "slept")) == "slept"
    with pytest.raises(ValueError, match="as it should"):
        blocking.call(fail())


def test_items_come_one_by_one_and_errors_in_their_place(blocking: Blocking) -> None:
    assert list(blocking.each(Counting().numbers(end=3))) == [0, 1, 2]
    items = blocking.each(Counting().numbers(end=4))
    assert [next(items) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="as it should"):
        next(items)


def test_a_reader_that_stops_closes_the_generator(blocking: Blocking) -> None:
    counting = Counting()
    items = blocking.each(counting.numbers(end=3))
    assert next(items) == 0
    del items
    assert counting.is_closed
