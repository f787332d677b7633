"""Rows of a data set that cannot run: named before training; in a stream, each fails alone."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from prorl_service.client import RolloutClient
from prorl_service.client.datasets import BadRows
from prorl_service.client.trainable import failure_summary
from prorl_service.client.trainers_service import TrainersService, run_groups
from prorl_service.testing import StubEngine
from prorl_service.tokens.chat import ChatFormat
from prorl_trl import ProRLRollout, convert
from prorl_trl.async_rollouts import ProRLRolloutWorker
from tests.server.application import serving
from tests.server.conftest import engine  # noqa: F401
from tests.server.draws import scored_settings
from tests.server.scored_agent import scored
from tests.trl.training import SMALL, TWO_TURNS, dataset


@pytest.fixture
async def url(engine: StubEngine) -> AsyncIterator[str]:  # noqa: F811
    async with serving(scored_settings(engine)) as address:
        yield address


async def test_a_row_that_cannot_run_is_a_failed_row_and_others_are_trained_on(
    url: str, chat: ChatFormat
) -> None:
    bad = scored("bad", 0, 1)
    bad.task.agent = "stranger"

    def train() -> list[convert.TrlRow]:
        rollouts = run_groups(
            TrainersService(url, token=None, deadline_s=60),
            [scored("good", 0, 1), bad],
            {},
            deadline=time.monotonic() + 60,
        )
        return [
            convert.row_of(one, eos_id=chat.end_of_turn_id, segments="refuse", overlong="mask")
            for one in rollouts
        ]

    rows = await asyncio.to_thread(train)
    assert [one.failure is None for one in rows] == [True, True, False, False]
    assert "stranger" in failure_summary([row.failure for row in rows])


STRANGER = {"task_id": "odd", "agent": "stranger"}


def with_bad_rows(good: int) -> Dataset:
    """Tasks that work, then one whose agent is not there, and one without messages."""
    odd = [{"role": "user", "content": "count", "prorl": json.dumps(STRANGER)}]
    empty = [{"role": "assistant", "content": "", "tool_call_id": "7"}]
    rows = [dict(one) for one in dataset([None] * good)]
    return Dataset.from_list([*rows, {"prompt": odd}, {"prompt": empty}])


@pytest.mark.processes
def test_grpo_names_the_bad_rows_of_all_data_sets_before_any_rollout(
    other_url: str, policy: Path, tmp_path: Path
) -> None:
    with RolloutClient(other_url) as client:
        before = client.status()
    rollouts = ProRLRollout(other_url, agent="letters", **TWO_TURNS)
    trainer = GRPOTrainer(
        model=str(policy),
        args=GRPOConfig(output_dir=str(tmp_path), **SMALL),
        train_dataset=with_bad_rows(8),
        eval_dataset={"held out": with_bad_rows(1)},
        rollout_func=rollouts,
        reward_funcs=rollouts.reward_funcs,
    )
    with pytest.raises(BadRows) as refused:
        trainer.train()
    lines = [line.strip() for line in str(refused.value).splitlines()]
    assert lines[:2] == [
        "4 rows cannot be trained on:",
        "train_dataset[8], task odd: agent: no agent 'stranger'",
    ]
    assert lines[2].startswith("train_dataset[9], task prompt-")
    assert "only messages of role `tool` have a tool_call_id" in lines[2]
    assert lines[3].startswith("eval_dataset['held out'][1], task odd: agent: ")
    with RolloutClient(other_url) as client:
        status = client.status()
    assert status.rollouts == before.rollouts
    assert status.ended == before.ended
    assert status.policy_version == before.policy_version


@pytest.mark.processes
def test_the_asynchronous_worker_names_them_at_its_start(other_url: str, tmp_path: Path) -> None:
    from tests.trl.async_training import AsyncTrainings

    config = AsyncTrainings(other_url, tmp_path, tmp_path).config(max_inflight_tasks=4)
    with RolloutClient(other_url) as client:
        before = client.status().rollouts
    worker = ProRLRolloutWorker(other_url, config, with_bad_rows(2), agent="letters")
    with pytest.raises(BadRows, match=r"train_dataset\[2\], task odd: agent: no agent 'stranger'"):
        worker.start()
    with RolloutClient(other_url) as client:
        assert client.status().rollouts == before
