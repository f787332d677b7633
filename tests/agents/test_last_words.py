"""What a reply says in all, and what counts as an agent's answer: text, and calls that ended the
rollout; no other call."""

from collections.abc import Sequence
from typing import ClassVar

import pytest

from prorl_service.agents.base import Prompt, RolloutContext, Verdict, words_of
from prorl_service.agents.loop import ToolAgent
from prorl_service.schemas import FinishReason, Limits, Message, Task
from prorl_service.testing import call, play
from prorl_service.tokens.formats import Reply, ToolCall


class Said(ToolAgent):
    """Its report has what its answer was read as."""

    name: ClassVar[str] = "said"

    def __init__(self, task: Task) -> None:
        super().__init__(task, ["bash", "submit"])

    def prompt(self) -> Prompt:
        return self.with_tools(self.task.messages)

    async def init(self, rollout: RolloutContext) -> None:
        self._sandbox = await rollout.open_sandbox()

    async def run(self, rollout: RolloutContext) -> FinishReason:
        return await self.call_tools(rollout)

    async def eval(self, rollout: RolloutContext) -> Verdict:
        return Verdict(0.0, report={"said": rollout.answer.strip()})


@pytest.mark.parametrize(
    ("replies", "said"),
    [
        (["It is 42."], "It is 42."),
        ([call("bash", command="echo 42"), "43"], "43"),
        ([call("submit", message="42")], "42"),
        ([call("bash", command="42"), call("bash", command="42")], ""),
    ],
)
async def test_only_a_call_that_ends_the_rollout_is_an_answer(
    replies: Sequence[str | Message], said: str
) -> None:
    task = Task(task_id="t", agent="said", messages=[Message(role="user", content="What is it?")])
    played = await play(Said, task, replies, limits=Limits(max_turns=2))
    assert played.rollout.report == {"said": said}


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply("It is 42."), "It is 42."),
        (Reply('{"a": "\\\\boxed{42}"}'), '{"a": "\\\\boxed{42}"}\n\\boxed{42}'),
        (Reply('{"a": [{"b": "one"}, 2], "c": "two"}'), None),
        (Reply('{"a": '), '{"a": '),
        (Reply("[" * 10**6), "[" * 10**6),
        (Reply('{"a":' * 10**5), '{"a":' * 10**5),
        (Reply("So.", calls=[ToolCall("submit", {"answer": "42", "n": 1})]), "So.\n42"),
    ],
)
def test_all_texts_of_a_reply(reply: Reply, words: str | None) -> None:
    assert words_of(reply) == (words or f"{reply.content}\none\ntwo")
