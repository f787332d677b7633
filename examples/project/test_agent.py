"""The agent with written replies. All but the model is real: stages, sandbox, tool, grading."""

import asyncio

from agent import LedgerAgent
from prorl_service.testing import Played, call, play

TASK = {
    "messages": [{"role": "user", "content": "Who paid most?"}],
    "data": {"payments": [["Ada", 3], ["Ben", 5]], "answer": "Ben"},
}


def played(find: str, answer: str) -> Played:
    return asyncio.run(play(LedgerAgent, TASK, [call("ledger", find=find), answer]))


def test_the_right_question_to_the_ledger_is_rewarded() -> None:
    rollout = played("most", "Ben")
    assert (rollout.outputs, rollout.reward) == (["Ben\n"], 1.0)


def test_a_wrong_one_is_not() -> None:
    rollout = played("least", "Ada")
    assert (rollout.outputs, rollout.reward) == (["Ada\n"], 0.0)


def test_the_model_is_told_what_it_may_look_for() -> None:
    rollout = played("average", "Ada")
    assert "Wrong arguments for ledger" in rollout.outputs[0]
