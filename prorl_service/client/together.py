"""Several calls at a time."""

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar

Result = TypeVar("Result")


async def all_of(calls: Iterable[Awaitable[Result]]) -> list[Result]:
    """Returns all results in the order of the calls. Raises the first error once all have ended."""
    found = await asyncio.gather(*calls, return_exceptions=True)
    results = []
    for one in found:
        if isinstance(one, BaseException):
            raise one
        results.append(one)
    return results
