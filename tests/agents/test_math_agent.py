"""The math agent from prompt to verdict: what counts as its answer, and who is blamed."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from prorl_service.agents.base import Verdict
from prorl_service.agents.math import SYSTEM_PROMPT, MathAgent
from prorl_service.errors import EvaluatorError
from prorl_service.rewards.pool import ScoringPool
from prorl_service.schemas import FinishReason, Message, Task
from prorl_service.tokens.chat import ChatFormat
from tests.agents.scripted_agent import call, context, played

pytestmark = pytest.mark.processes

HANGS = "9^{9^{9^{9}}}"


@pytest.fixture(scope="module")
def scoring() -> Iterator[ScoringPool]:
    pool = ScoringPool(workers=1, cpu_s=2)
    yield pool
    asyncio.run(pool.close())


def agent(answer: str = "42", *messages: Message, **data: Any) -> MathAgent:
    asked = messages or (Message(role="user", content="What is 6 times 7?"),)
    return MathAgent(
        Task(task_id="t", agent="math", messages=list(asked), data={"answer": answer, **data})
    )


async def verdict_on(
    chat: ChatFormat, scoring: ScoringPool, reply: str, answer: str = "42", **data: Any
) -> Verdict:
    math = agent(answer, **data)
    _, _, verdict = await played(math, context(math, [reply], chat, scoring))
    return verdict


async def test_the_agent_computes_with_ipython_and_bash(
    chat: ChatFormat, scoring: ScoringPool
) -> None:
    math = agent(tools=["ipython", "bash"])
    replies = [
        call("ipython", code="x = 6 * 7\nx"),
        call("bash", command="echo $((6*7))"),
        r"<think>\boxed{41}?</think>Hence \boxed{42}.",
    ]
    reason, outputs, verdict = await played(math, context(math, replies, chat, scoring))
    assert reason is FinishReason.FINISHED
    assert outputs == ["42", "42"]
    assert (verdict.reward, verdict.components["answered"]) == (1.0, 1.0)


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
    chat: ChatFormat,
    scoring: ScoringPool,
    reply: str,
    answer_format: str,
    reward: float,
    answered: float,
) -> None:
    verdict = await verdict_on(chat, scoring, reply, answer_format=answer_format)
    assert (verdict.reward, verdict.components["answered"]) == (reward, answered)
    assert verdict.components["scoring_failed"] == 0.0


async def test_an_answer_that_cannot_be_scored_is_wrong(
    chat: ChatFormat, scoring: ScoringPool
) -> None:
    verdict = await verdict_on(chat, scoring, f"\\boxed{{{HANGS}}}")
    assert verdict.reward == 0.0
    assert verdict.components["scoring_failed"] == 1.0


@pytest.mark.parametrize("gold", ["}{", HANGS])
async def test_a_gold_answer_that_cannot_be_scored_is_an_evaluator_error(
    chat: ChatFormat, scoring: ScoringPool, gold: str
) -> None:
    with pytest.raises(EvaluatorError, match=r"gold answer|no answer can be compared"):
        await verdict_on(chat, scoring, r"\boxed{42}", answer=gold)


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
    with pytest.raises(ValidationError, match="tools"):
        agent(tools=["abacus"])
