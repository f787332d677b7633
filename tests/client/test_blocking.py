"""The asynchronous client's coroutines without an event loop, and the blocking client's methods."""

import asyncio
import inspect
from collections.abc import AsyncGenerator

import pytest

from prorl_service.client import AsyncRolloutClient, RolloutClient
from prorl_service.client.blocking import each, finished

FOR_FRONTS = {"limited", "parts"}


async def doubled(number: int) -> int:
    if number < 0:
        raise ValueError("as it should")
    return 2 * number


class Counting:
    is_closed = False

    async def numbers(self, *, end: int) -> AsyncGenerator[int, None]:
        try:
            for number in range(end):
                yield await doubled(number)
            if end > 3:
                await doubled(-1)
        finally:
            self.is_closed = True


def test_a_coroutine_that_waits_for_nothing_returns_or_raises() -> None:
    assert finished(doubled(3)) == 6
    with pytest.raises(ValueError, match="as it should"):
        finished(doubled(-1))
    with pytest.raises(RuntimeError, match="waits for an event loop"):
        finished(asyncio.sleep(0))


def test_items_come_one_by_one_and_errors_in_their_place() -> None:
    assert list(each(Counting().numbers(end=3))) == [0, 2, 4]
    items = each(Counting().numbers(end=4))
    assert [next(items) for _ in range(4)] == [0, 2, 4, 6]
    with pytest.raises(ValueError, match="as it should"):
        next(items)


def test_a_reader_that_stops_closes_the_generator() -> None:
    counting = Counting()
    items = each(counting.numbers(end=3))
    assert next(items) == 0
    del items
    assert counting.is_closed


def test_both_clients_have_the_same_methods() -> None:
    def methods(of: type) -> dict[str, object]:
        found = inspect.getmembers(of, inspect.isfunction)
        public = [(name, one) for name, one in found if not name.startswith("_")]
        return {name: (inspect.signature(one), one.__doc__) for name, one in public}

    blocking, asynchronous = methods(RolloutClient), methods(AsyncRolloutClient)
    asynchronous["close"] = asynchronous.pop("aclose")
    assert blocking == {name: one for name, one in asynchronous.items() if name not in FOR_FRONTS}
