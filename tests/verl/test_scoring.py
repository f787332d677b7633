"""Scoring of rollouts by VeRL's reward loop: its reward managers, on the service's reward or a
user's function."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from prorl_service.client.trainable import SoftPunishment, failure_of
from prorl_service.schemas import Group, Limits, Rollout
from prorl_verl.rows import Row
from prorl_verl.scoring import Scoring, compute_score_of
from prorl_verl.store import Prompt
from prorl_verl.tensors import fields_of
from tests import builders
from tests.verl.test_hydra import VERL_CONFIG
from tests.verl.test_rows import rollout_of, segment

REWARDS = Path(__file__).with_name("rewards.py")


def config_of(policy: Path, *overrides: str) -> Any:
    with initialize_config_dir(str(VERL_CONFIG), version_base=None):
        return compose("ppo_trainer", [f"actor_rollout_ref.model.path={policy}", *overrides])


def prompt_of(**columns: Any) -> Prompt:
    group = Group(group_id="g", task=builders.task(), n=1, limits=Limits(max_response_tokens=99))
    return Prompt("u", {"uid": "u", **columns}, group, 1, "train")


def score(
    config: Any,
    rollout: Rollout,
    *,
    prompt: Prompt | None = None,
    takes_segments: bool = True,
    overlong: SoftPunishment | None = None,
) -> tuple[Rollout, list[Row]]:
    """Scores with a reward manager in this process."""

    async def run() -> tuple[Rollout, list[Row]]:
        scoring = Scoring(
            overlong=overlong,
            compute_score=config and compute_score_of(config, [LocalWorker(config)]),
            takes_segments=takes_segments,
        )
        (scored,) = await scoring.of(prompt or prompt_of(), [rollout])
        return scored

    return asyncio.run(run())


class LocalWorker:
    """A reward worker of VeRL's, called like its Ray actor."""

    def __init__(self, config: Any) -> None:
        from verl.experimental.reward_loop.reward_loop import RewardLoopWorker

        self._worker = RewardLoopWorker(config)
        self.compute_score = self

    def remote(self, data: Any) -> Any:
        return self._worker.compute_score(data)


def test_the_reward_is_the_services_by_default(policy: Path) -> None:
    _, (row,) = score(config_of(policy), rollout_of([segment([1, 1])], reward=0.5))
    assert row.reward == 0.5
    assert row.metrics == {"acc": 0.5, "overlong_penalty": 0.0, "cut_off": 0.0}


def test_dapos_overlong_buffer_lowers_the_services_reward(policy: Path) -> None:
    """The buffer of 5 leaves 4 of 9 tokens free; 4 of the 8 sampled ones exceed them."""
    config = config_of(
        policy,
        "reward.reward_manager.name=dapo",
        "+reward.reward_kwargs.overlong_buffer_cfg={enable: true, len: 5, penalty_factor: 1.0, "
        "log: true}",
        "+reward.reward_kwargs.max_resp_len=9",
    )
    _, (row,) = score(config, rollout_of([segment([1] * 8)], reward=1.0))
    assert row.reward == pytest.approx(0.2)
    assert row.metrics["acc"] == row.metrics["prorl_reward"] == 1.0
    assert row.metrics["overlong_reward"] == pytest.approx(-0.8)
    assert row.metrics["overlong"]


def test_a_users_function_gets_verls_arguments_and_the_services_result(
    policy: Path,
) -> None:
    config = config_of(
        policy,
        f"reward.custom_reward_function.path={REWARDS}",
        "reward.custom_reward_function.name=all_it_was_given",
    )
    prompt = prompt_of(
        data_source="s", reward_model={"ground_truth": "51"}, extra_info={"index": 3}
    )
    parts = [segment([1, 1]), segment([1, 0, 1])]
    rollout = rollout_of(parts, reward=0.5)
    assert rollout.trajectory is not None
    rollout.trajectory.turns = [
        builders.turn(0, 0, 2),
        builders.turn(1, 0, 1, reward=0.25),
        builders.turn(1, 2, 3, reward=0.25),
    ]
    _, rows = score(config, rollout, prompt=prompt)
    assert [row.reward for row in rows] == [7.0, 7.0]
    scores = [fields_of(row, {})["rm_scores"].tolist() for row in rows]
    assert scores == [[0.0, 7.0], [0.25, 0.0, 6.75]]
    given = rows[0].metrics["given"]
    assert (given["data_source"], given["ground_truth"], given["index"]) == ("s", "51", 3)
    assert given["prorl"] == {
        "reward": 0.5,
        "reward_components": {},
        "turn_rewards": [None, 0.25, 0.25],
        "finish_reason": "finished",
        "task_id": "t",
        "agent": "math",
    }
    assert prompt.columns["extra_info"] == {"index": 3}


@pytest.mark.parametrize(
    ("function", "message"),
    [("fails", "KeyError: 'no such key'"), ("is_nan", "ValueError: the reward is nan")],
)
def test_a_function_that_fails_costs_only_its_rollout(
    policy: Path, function: str, message: str
) -> None:
    config = config_of(
        policy,
        f"reward.custom_reward_function.path={REWARDS}",
        f"reward.custom_reward_function.name={function}",
    )
    rollout, rows = score(config, rollout_of([segment([1])]))
    assert rows == []
    failure = failure_of(rollout)
    assert failure is not None
    assert (failure.kind, failure.message) == ("RewardFunctionFailed", message)


def test_only_grpo_takes_several_segments() -> None:
    parts = [segment([1, 1]), segment([1])]
    rollout, rows = score(None, rollout_of(parts), takes_segments=False)
    assert rows == []
    failure = failure_of(rollout)
    assert failure is not None
    assert "2 segments, algorithm.adv_estimator takes one" in failure.message
    _, rows = score(None, rollout_of(parts[:1]), takes_segments=False)
    assert len(rows) == 1
