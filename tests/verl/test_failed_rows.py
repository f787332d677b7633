"""Rollouts that failed, whatever the reason: they are in no row, in no baseline and under no reward
function, by the formulas of VeRL itself."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from verl import DataProto
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

from prorl_service.client.trainable import checked, failure_of
from prorl_service.schemas import Blame, ErrorInfo, Rollout, RolloutState
from prorl_verl.scoring import Scoring
from prorl_verl.store import Entries
from tests.verl.test_rows import rollout_of, segment, turn_of
from tests.verl.test_scoring import prompt_of

REWARDS = (1.0, 0.5, 0.25)


def failures() -> dict[str, Rollout]:
    """Returns a rollout for each way to fail. All have tokens, and most have a reward."""
    parts = [segment([1, 0, 1])]
    done = rollout_of(parts, reward=9.0)
    error = {one: ErrorInfo(kind="Any", blame=one, message="gone") for one in Blame}
    states = [one for one in RolloutState if one is not RolloutState.DONE]
    ours = done.model_copy(deep=True)
    assert ours.trajectory is not None
    ours.trajectory.turns.append(turn_of("elsewhere:1"))
    return {
        **{f"failed by {one}": done.model_copy(update={"error": error[one]}) for one in Blame},
        **{str(one): rollout_of(parts, reward=9.0, state=one) for one in states},
        "no reward": rollout_of(parts, reward=None),
        "no token": rollout_of([segment([0, 0])], reward=9.0),
        "no trajectory": done.model_copy(update={"trajectory": None}),
        "another engine": checked(ours, engine="here:1", versions={3}),
        "another version": checked(done, engine="here:1", versions={2}),
    }


async def praise(data: DataProto) -> dict[str, Any]:
    """A reward function that likes every answer."""
    return {"reward_score": 5.0, "reward_extra_info": {"acc": 1.0}}


def group_with(failed: Rollout) -> list[Rollout]:
    good = [rollout_of([segment([1, 0, 1])], reward=reward) for reward in REWARDS]
    members = [good[0], failed, *good[1:]]
    return [one.model_copy(update={"index": place}) for place, one in enumerate(members)]


def advantages(keys: Sequence[str], columns: Sequence[dict[str, Any]]) -> torch.Tensor:
    """Returns the advantage of each row, as VeRL's V1 trainer computes it."""
    names = ("response_mask", "rm_scores")
    tensors = {
        name: torch.nn.utils.rnn.pad_sequence([one[name] for one in columns], batch_first=True)
        for name in names
    }
    tensors["token_level_rewards"] = tensors["rm_scores"]
    uids = [key.rsplit("_", 2)[0] for key in keys]
    data = DataProto.from_dict(tensors, non_tensors={"uid": np.array(uids, dtype=object)})
    data = compute_advantage_for_multi_trajectories(
        data, list(keys), "grpo", config=OmegaConf.create({})
    )
    found: torch.Tensor = data.batch["advantages"].sum(-1) / tensors["response_mask"].sum(-1)
    return found


def by_hand() -> list[float]:
    mean = sum(REWARDS) / len(REWARDS)
    std = (sum((one - mean) ** 2 for one in REWARDS) / (len(REWARDS) - 1)) ** 0.5
    return [(one - mean) / (std + 1e-6) for one in REWARDS]


@pytest.mark.parametrize("name", failures())
def test_a_failed_rollout_has_no_row_no_part_in_its_groups_baseline_and_no_other_reward(
    name: str,
) -> None:
    asked: list[str] = []

    async def counted(data: DataProto) -> dict[str, Any]:
        asked.append("once")
        return await praise(data)

    members = group_with(failures()[name])
    scoring = Scoring(overlong=None, compute_score=None, takes_segments=True)
    entries = Entries()
    entries.add(prompt_of(), asyncio.run(scoring.of(prompt_of(), members)))
    assert entries.keys == ["u_0_0", "u_2_0", "u_3_0"]
    assert advantages(entries.keys, entries.fields).tolist() == pytest.approx(by_hand(), abs=1e-5)
    scoring = Scoring(overlong=None, compute_score=counted, takes_segments=True)
    scored = asyncio.run(scoring.of(prompt_of(), members))
    assert len(asked) == len(REWARDS)
    assert [len(rows) for _, rows in scored] == [1, 0, 1, 1]
    assert failure_of(scored[1][0]) is not None
