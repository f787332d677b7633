"""Base of agents whose answer is the last reply: the model may compute in a sandbox before it.

A rollout that stops without an answer (turns or tokens used up, no box) has none: it is wrong, not
failed. How an answer is scored is the agent's.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from prorl_service.agents.base import Prompt, Restores, RolloutContext, with_system
from prorl_service.agents.loop import ToolAgent
from prorl_service.rewards.math import boxed
from prorl_service.schemas import FinishReason, Task

AnswerFormat = Annotated[
    Literal["boxed", "plain"],
    Field(description="Part of the last reply that counts: its last `\\boxed{}`, or all of it."),
]


class AnswerAgent(ToolAgent):
    restores: ClassVar[Restores] = "sandbox"

    def __init__(self, task: Task, answer_format: AnswerFormat, tools: Sequence[str]) -> None:
        super().__init__(task, tools)
        self._is_boxed = answer_format == "boxed"
        self._finish_reason = FinishReason.ERROR

    @abstractmethod
    def system_prompt(self) -> str:
        """Returns the system message that asks for a box."""

    def prompt(self) -> Prompt:
        """Returns the task's messages, after this agent's system message if it asks for a box and
        they have none."""
        messages = list(self.task.messages)
        if self._is_boxed:
            messages = with_system(self.system_prompt(), messages)
        return self.with_tools(messages)

    async def init(self, rollout: RolloutContext) -> None:
        self._sandbox = await rollout.open_sandbox()

    async def run(self, rollout: RolloutContext) -> FinishReason:
        self._finish_reason = await self.call_tools(rollout)
        return self._finish_reason

    def boxed_or_plain(self, answer: str) -> str:
        """Returns a last reply that gives `answer`."""
        return f"\\boxed{{{answer}}}" if self._is_boxed else answer

    def answer(self, rollout: RolloutContext) -> str | None:
        if self._finish_reason is not FinishReason.FINISHED:
            return None
        return boxed(rollout.answer) if self._is_boxed else rollout.answer.strip()
