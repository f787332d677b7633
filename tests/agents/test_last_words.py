"""What counts as an agent's answer: text, and calls that ended the rollout; no other call."""

from collections.abc import Sequence
from typing import ClassVar

import pytest

from prorl_service.agents.base import Prompt, RolloutContext, Verdict
from prorl_service.agents.loop import ToolAgent
from prorl_service.schemas import FinishReason, Limits, Message, Task
from prorl_service.testing import call, play


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
