from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from prorl_service.pipeline.pipeline import Pipeline
from prorl_service.sandbox.base import ToolResult
from prorl_service.testing import FakeSandboxes, StubEngine
from prorl_service.tokens.chat import ChatFormat
from tests.pipeline.probe_agent import Start, running


@pytest.fixture
async def engine(tiny_model: Path, chat: ChatFormat) -> AsyncIterator[StubEngine]:
    async with StubEngine(tiny_model, lambda _: [5, 6, chat.end_of_turn_id]) as stub:
        yield stub


@pytest.fixture
def sandboxes() -> FakeSandboxes:
    return FakeSandboxes(lambda name, arguments: ToolResult(""))


@pytest.fixture
def start(engine: StubEngine, sandboxes: FakeSandboxes, tmp_path: Path) -> Start:
    """Starts a pipeline of `Probe` agents, with the options of `running`."""
    return partial(running, engine, sandboxes, tmp_path)


@pytest.fixture
async def pipeline(start: Start) -> AsyncIterator[Pipeline]:
    async with start() as started:
        yield started
