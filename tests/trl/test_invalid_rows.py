"""Rows of a data set that cannot run: each costs the training only itself."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from tqdm.auto import tqdm

from prorl_service.client import RolloutClient
from prorl_service.testing import StubEngine
from prorl_service.tokens.chat import ChatFormat
from prorl_trl import convert
from prorl_trl.conversation import run_groups
from tests.server.application import serving
from tests.server.conftest import engine  # noqa: F401
from tests.server.draws import scored_settings
from tests.server.scored_agent import scored


@pytest.fixture
async def url(engine: StubEngine) -> AsyncIterator[str]:  # noqa: F811
    async with serving(scored_settings(engine)) as address:
        yield address


async def test_a_row_that_cannot_run_is_a_failed_row_and_others_are_trained_on(
    url: str, chat: ChatFormat
) -> None:
    bad = scored("bad", 0, 1)
    bad.task.agent = "stranger"

    def train() -> list[convert.Row]:
        rollouts = run_groups(
            lambda retry_s=60: RolloutClient(url, retry_s=retry_s),
            [scored("good", 0, 1), bad],
            {},
            deadline=time.monotonic() + 60,
            new_bar=lambda *_: tqdm(disable=True),
        )
        return [
            convert.row_of(one, eos_id=chat.end_of_turn_id, segments="refuse", overlong="mask")
            for one in rollouts
        ]

    rows = await asyncio.to_thread(train)
    assert [one.failure is None for one in rows] == [True, True, False, False]
    assert "stranger" in convert.failure_summary(rows)
