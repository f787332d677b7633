from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from prorl_service.testing import StubEngine
from prorl_service.tokens.chat import ChatFormat


@pytest.fixture
async def engine(tiny_model: Path, chat: ChatFormat) -> AsyncIterator[StubEngine]:
    async with StubEngine(tiny_model, lambda _: [5, 6, chat.end_of_turn_id]) as stub:
        yield stub
