from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from prorl_service import local
from prorl_service.client import AsyncRolloutClient
from prorl_service.schemas import BackendSpec
from prorl_service.testing import StubEngine
from prorl_service.tokens.chat import ChatFormat
from tests.server.application import Settings, serving
from tests.server.scored_agent import SCORED
from tests.trainers import async_trainer

TWO_AT_ONCE = (
    *("--agent", SCORED, "--sandbox", "process", "--warm-sandboxes", "0"),
    *("--run-workers", "2", "--init-workers", "1", "--ready-rollouts", "1"),
)
"""Options of a service that runs two rollouts at a time and prepares one more."""


def service(name: str, tmp_path: Path, *options: str) -> AbstractContextManager[local.LocalProcess]:
    """Starts a service that knows no engine, announced as `name`."""
    return local.service(
        [],
        log=tmp_path / f"{name}.log",
        options=[
            *TWO_AT_ONCE,
            *("--announce", str(tmp_path / "services" / f"{name}.json")),
            *options,
        ],
    )


@pytest.fixture
def services(tmp_path: Path) -> Iterator[list[local.LocalProcess]]:
    with ExitStack() as stack:
        yield [stack.enter_context(service(name, tmp_path)) for name in ("a", "b")]


@pytest.fixture
async def engine(tiny_model: Path, chat: ChatFormat) -> AsyncIterator[StubEngine]:
    async with StubEngine(tiny_model, lambda _: [5, 6, chat.end_of_turn_id]) as stub:
        yield stub


@pytest.fixture
def settings(engine: StubEngine, tmp_path: Path) -> Settings:
    return Settings(
        services=tmp_path / "services",
        agents=(SCORED,),
        backends=(BackendSpec(url=engine.url),),
        journal=tmp_path / "front.sqlite",
        resume=True,
    )


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[AsyncRolloutClient]:
    """Client of a front."""
    async with serving(settings) as url, async_trainer(url) as connected:
        yield connected
