from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from prorl_service.client import AsyncRolloutClient
from prorl_service.schemas import BackendSpec
from prorl_service.testing import StubEngine
from prorl_service.tokens.chat import ChatFormat
from tests.server.application import Settings, serving

CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "cat secret"}}\n</tool_call>'


@pytest.fixture
async def engine(tiny_model: Path, chat: ChatFormat) -> AsyncIterator[StubEngine]:
    """Plays an agent that reads the file `secret`, then answers with its content in a box."""

    def answer(prompt: list[int]) -> list[int]:
        output = chat.decode(prompt).rpartition("<tool_response>\n")[2].partition("\n<")[0]
        text = f"\\boxed{{{output}}}" if "<tool_response>" in chat.decode(prompt) else CALL
        return [*chat.encode(text), chat.end_of_turn_id]

    async with StubEngine(tiny_model, answer) as stub:
        yield stub


@pytest.fixture
def settings(engine: StubEngine) -> Settings:
    return Settings(
        backends=(BackendSpec(url=engine.url),),
        sandbox="bubblewrap",
        max_body_mb=1,
    )


@pytest.fixture
async def url(settings: Settings) -> AsyncIterator[str]:
    async with serving(settings) as address:
        yield address


@pytest.fixture
async def http(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        yield client


@pytest.fixture
async def client(url: str) -> AsyncIterator[AsyncRolloutClient]:
    async with AsyncRolloutClient(url) as connected:
        yield connected
