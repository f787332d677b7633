"""The math agent from prompt to verdict: what counts as its answer, and who is blamed."""

import re
from typing import Any

import pytest

from prorl_service.agents.math import SYSTEM_PROMPT, MathAgent
from prorl_service.schemas import Blame, FinishReason, Message, Stage, Task
from prorl_service.testing import Played, Reply, call, play

pytestmark = pytest.mark.processes

HANGS = "9^{9^{9^{9}}}"


def task(answer: str = "42", *messages: Message, **data: Any) -> Task:
    asked = messages or (Message(role="user", content="What is 6 times 7?"),)
    data = {"answer": answer, **data}
    return Task(task_id="t", agent="math", messages=list(asked), data=data)


def agent(answer: str = "42", *messages: Message, **data: Any) -> MathAgent:
    return MathAgent(task(answer, *messages, **data))


async def played(reply: str, answer: str = "42", **data: Any) -> Played:
    return await play(MathAgent, task(answer, **data), [reply], sandboxes="bubblewrap")


async def test_the_agent_computes_with_ipython_and_bash() -> None:
    replies: list[Reply] = [
        call("ipython", code="x = 6 * 7\nx"),
        call("bash", command="echo $((6*7))"),
        r"<think>\boxed{41}?</think>Hence \boxed{42}.",
    ]
    computed = await play(MathAgent, task(tools=["ipython", "bash"]), replies)
    assert computed.finish_reason is FinishReason.FINISHED
    assert computed.outputs == ["42", "42"]
    assert (computed.reward, computed.rollout.reward_components["answered"]) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("reply", "answer_format", "reward", "answered"),
    [
        (r"\boxed{42}", "boxed", 1.0, 1.0),
        (r"\boxed{41}", "boxed", 0.0, 1.0),
        ("It is 42.", "boxed", 0.0, 0.0),
        ("42", "boxed", 0.0, 0.0),
        (r"\boxed{42", "boxed", 0.0, 0.0),
        ("42\n", "plain", 1.0, 1.0),
        ("41", "plain", 0.0, 1.0),
        ("It is 41, not 42.", "plain", 0.0, 1.0),
    ],
)
async def test_the_answer_is_the_box_or_the_whole_plain_reply(
    reply: str, answer_format: str, reward: float, answered: float
) -> None:
    answer = await played(reply, answer_format=answer_format)
    components = answer.rollout.reward_components
    assert (answer.reward, components["answered"]) == (reward, answered)
    assert components["scoring_failed"] == 0.0


async def test_an_answer_that_cannot_be_scored_is_wrong() -> None:
    answer = await played(f"\\boxed{{{HANGS}}}")
    assert answer.reward == 0.0
    assert answer.rollout.reward_components["scoring_failed"] == 1.0


@pytest.mark.parametrize("gold", ["}{", HANGS])
async def test_a_gold_answer_that_cannot_be_scored_is_an_evaluator_error(gold: str) -> None:
    answer = await played(r"\boxed{42}", answer=gold)
    error = answer.rollout.error
    assert error is not None
    assert (error.kind, error.blame, error.stage) == (
        "EvaluatorError",
        Blame.EVALUATOR,
        Stage.EVAL,
    )
    assert re.search(r"gold answer|no answer can be compared", error.message)


def test_the_prompt_asks_for_a_box_unless_the_task_says_otherwise() -> None:
    system, user = agent().prompt().messages
    assert (system.role, system.content, user.role) == ("system", SYSTEM_PROMPT, "user")
    own = (Message(role="system", content="Be brief."), Message(role="user", content="6*7?"))
    assert agent("42", *own).prompt().messages == list(own)
    assert [message.role for message in agent(answer_format="plain").prompt().messages] == ["user"]


def test_tools_are_those_of_the_task() -> None:
    def names(math: MathAgent) -> list[str]:
        return [tool["function"]["name"] for tool in math.prompt().tools]

    assert names(agent()) == ["bash"]
    assert names(agent(tools=["ipython", "bash", "ipython"])) == ["ipython", "bash"]
    assert names(agent(tools=[])) == []
