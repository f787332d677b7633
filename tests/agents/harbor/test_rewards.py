"""Reward files of verifiers, and the verdict on a task from what its probes got."""

import pytest

from prorl_service.agents.harbor.directory.checks import (
    NOTHING,
    ORACLE,
    Outcome,
    absent_steps,
    faults,
)
from prorl_service.agents.harbor.rewards import NoReward, RewardFiles


@pytest.mark.parametrize(
    ("json", "text", "rewards", "has_remark"),
    [
        (b'{"reward": 1}', None, {"reward": 1.0}, False),
        (None, b"0.5\n", {"reward": 0.5}, False),
        (b'{"reward": 1}', b"0", {"reward": 1.0}, False),
        (b'{"a": 1, "b": 0.5}', b"x", {"a": 1.0, "b": 0.5}, False),
        (b'{"score": 1.0, "status": "pass", "failures": []}', b"1.0", {"reward": 1.0}, True),
        (b"[1]", b"0.25", {"reward": 0.25}, True),
        (b"{", b"1", {"reward": 1.0}, True),
        (b'{"reward": NaN}', b"1", {"reward": 1.0}, True),
    ],
)
def test_the_text_counts_only_if_the_json_holds_no_rewards(
    json: bytes | None, text: bytes | None, rewards: dict[str, float], has_remark: bool
) -> None:
    found, remark = RewardFiles(json, text).read()
    assert found == rewards
    assert bool(remark) is has_remark
    assert remark.endswith("reward.txt counts") is has_remark


@pytest.mark.parametrize(
    ("json", "text", "problem"),
    [
        (None, None, "neither reward.json nor reward.txt"),
        (b'{"status": "pass"}', None, "'status' is no finite number"),
        (b'{"status": "pass"}', b"pass", "'status' is no finite number"),
        (None, b"pass", "reward.txt holds no number"),
        (None, b"nan", "no finite number"),
        (b"[1]", None, "no object of rewards"),
    ],
)
def test_the_first_file_is_named_if_no_file_is_right(
    json: bytes | None, text: bytes | None, problem: str
) -> None:
    with pytest.raises(NoReward, match=problem):
        RewardFiles(json, text).read()


@pytest.mark.parametrize(
    ("oracle", "nothing", "steps", "said"),
    [
        (Outcome(ORACLE, 1), Outcome(NOTHING, 0), [], []),
        (Outcome(ORACLE, 1), Outcome(NOTHING, 0, absent=[0]), [0], []),
        (Outcome(ORACLE, 1), Outcome(NOTHING, 0, absent=[0, 2]), [0, 2], []),
        (
            Outcome(ORACLE, 0, absent=[0]),
            Outcome(NOTHING, 0, absent=[0]),
            [],
            ["the verifier gives the solution no reward"],
        ),
        (
            Outcome(ORACLE, None, "it hangs"),
            Outcome(NOTHING, 0, absent=[0]),
            [],
            ["oracle: it hangs"],
        ),
        (Outcome(ORACLE, 0.5), Outcome(NOTHING, 0), [], ["the solution gets 0.5, not 1"]),
    ],
)
def test_a_missing_reward_is_a_failure_if_the_solution_gets_one(
    oracle: Outcome, nothing: Outcome, steps: list[int], said: list[str]
) -> None:
    assert absent_steps([oracle, nothing]) == steps
    assert faults([oracle, nothing]) == said
