"""Verdicts of servers as reward, components and report; those that are none."""

from typing import Any

import pytest

from prorl_service.agents.nemo_gym.verdict import MAX_COMPONENTS, MAX_DETAILS_BYTES, verdict_of
from prorl_service.errors import EvaluatorError
from prorl_service.schemas import Blame
from prorl_service.tools.nemo_gym import failures

ROW = {"responses_create_params": {"input": "Hi"}, "expected": 3, "id": 7}


def answer(**fields: Any) -> dict[str, Any]:
    return {**ROW, "response": {"output": []}, "reward": 0.5, "mask_sample": False, **fields}


def test_each_number_that_the_server_adds_is_a_component() -> None:
    verdict = verdict_of(
        answer(
            accuracy=True,
            overlap=0.25,
            text="three",
            nothing=None,
            reward_components={"format": 1.0},
            scores={"deep": {"er": 2}},
        ),
        ROW,
        server="gym",
    )
    assert verdict.reward == 0.5
    assert verdict.components == {"accuracy": 1, "overlap": 0.25, "format": 1, "scores.deep.er": 2}


def test_rewards_of_single_steps_are_in_the_report() -> None:
    verdict = verdict_of(answer(step_rewards=[0.0, 0.5], failure_reason="slow"), ROW, server="gym")
    assert verdict.components == {}
    assert verdict.report == {
        "server": "gym",
        "verdict": {"step_rewards": [0.0, 0.5], "failure_reason": "slow"},
        "left_out": 0,
    }


def test_what_is_kept_of_a_verdict_is_bounded() -> None:
    many = {f"n{number}": number + 0.5 for number in range(MAX_COMPONENTS + 5)}
    verdict = verdict_of(answer(document="x" * MAX_DETAILS_BYTES, **many), ROW, server="gym")
    assert len(verdict.components) == MAX_COMPONENTS
    assert verdict.report is not None
    assert verdict.report["left_out"] == 5
    assert "document" not in str(verdict.report["verdict"])


@pytest.mark.parametrize("reward", [None, "1", float("nan"), [1.0]])
def test_a_verdict_without_a_finite_reward_is_none(reward: Any) -> None:
    with pytest.raises(EvaluatorError, match="no number"):
        verdict_of(answer(reward=reward), ROW, server="gym")


@pytest.mark.parametrize(
    ("kind", "error", "blame", "retryable"),
    [
        ("judge_failed", "EvaluatorError", Blame.EVALUATOR, True),
        ("judge_unparseable", "EvaluatorError", Blame.EVALUATOR, False),
        ("verifier_error", "EvaluatorError", Blame.EVALUATOR, False),
        ("finance:no_filing", "EvaluatorError", Blame.EVALUATOR, False),
        ("transport_unreachable", "ToolServerError", Blame.SERVICE, True),
        ("provider_oom_killed", "ToolServerError", Blame.SERVICE, True),
        ("session_lost", "ToolServerError", Blame.SERVICE, True),
        ("agent_timeout", "AgentError", Blame.AGENT, False),
    ],
)
def test_a_masked_verdict_is_a_failure_of_its_kind(
    kind: str, error: str, blame: Blame, retryable: bool
) -> None:
    told = answer(mask_sample=True, failure_kind=kind, failure_reason="because")
    failure = failures.of_verdict("gym", told)
    assert failure is not None
    info = failure.info()
    assert (info.kind, info.blame, info.retryable) == (error, blame, retryable)
    assert info.message == f"gym: {kind} in verification: because"


@pytest.mark.parametrize(
    "told",
    [{"_ng_failure_class": "judge_failed"}, {"instance_config": {"mask_sample": True}}],
)
def test_older_servers_mask_in_their_own_ways(told: dict[str, Any]) -> None:
    assert failures.of_verdict("gym", answer(**told)) is not None


def test_a_verdict_that_only_names_a_failure_counts() -> None:
    told = answer(failure_kind="judge_unparseable", failure_reason="odd")
    assert failures.of_verdict("gym", told) is None
