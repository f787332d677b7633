from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from prorl_service.testing import StubEngine


@pytest.fixture
async def engine(tiny_model: Path) -> AsyncIterator[StubEngine]:
    async with StubEngine(tiny_model, lambda _: [5]) as stub:
        yield stub


@pytest.fixture
async def engines(tiny_model: Path) -> AsyncIterator[list[StubEngine]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(StubEngine(tiny_model, lambda _: [5])) for _ in range(3)
        ]
