"""Waits for what no event announces; only the test's own timeout bounds them."""

import asyncio
from collections.abc import Callable


async def condition(holds: Callable[[], object]) -> None:
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
