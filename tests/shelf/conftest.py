from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from prorl_service.client import AsyncRolloutClient
from prorl_service.schemas import BackendSpec
from prorl_service.testing import StubEngine
from prorl_service.tokens.chat import ChatFormat
from tests.server.application import Settings, serving
from tests.server.scored_agent import SCORED


@pytest.fixture
async def engine(tiny_model: Path, chat: ChatFormat) -> AsyncIterator[StubEngine]:
    """Thinks, calls bash, and boxes what that printed."""
    end = chat.end_of_turn_id

    def answer(prompt: list[int]) -> list[int]:
        output = chat.decode(prompt).rpartition("<tool_response>\n")[2].partition("\n<")[0]
        if "<tool_response>" in chat.decode(prompt):
            return [*chat.encode(f"\\boxed{{{output}}}"), end]
        call = '{"name": "bash", "arguments": {"command": "cat secret"}}'
        return [*chat.encode(f"<think>é?</think>I look.\n<tool_call>\n{call}\n</tool_call>"), end]

    async with StubEngine(tiny_model, answer) as stub:
        yield stub


@pytest.fixture
def settings(engine: StubEngine) -> Settings:
    return Settings(
        backends=(BackendSpec(url=engine.url),),
        agents=(SCORED,),
        sandbox="process",
        warm_sandboxes=0,
    )


@pytest.fixture
async def url(settings: Settings) -> AsyncIterator[str]:
    async with serving(settings) as address:
        yield address


@pytest.fixture
async def client(url: str) -> AsyncIterator[AsyncRolloutClient]:
    async with AsyncRolloutClient(url, retry_s=0) as impatient:
        yield impatient
