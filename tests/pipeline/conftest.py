from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from prorl_service.sandbox.base import ToolResult
from prorl_service.testing import FakeSandboxes, StubEngine
from prorl_service.tokens.chat import ChatFormat


@pytest.fixture
async def engine(tiny_model: Path, chat: ChatFormat) -> AsyncIterator[StubEngine]:
    async with StubEngine(tiny_model, lambda _: [5, 6, chat.end_of_turn_id]) as stub:
        yield stub


@pytest.fixture
def sandboxes() -> FakeSandboxes:
    return FakeSandboxes(lambda name, arguments: ToolResult(""))
