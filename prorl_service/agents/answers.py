"""Base of agents whose answer is the last reply: the model may compute in a sandbox before it.

A rollout that stops without an answer (turns or tokens used up, no box) has none: it is wrong, not
failed. How an answer is scored is the agent's; who is to blame where that does not end, is said
here.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from prorl_service.agents.base import Prompt, Restores, RolloutContext, with_system
from prorl_service.agents.loop import ToolAgent
from prorl_service.errors import EvaluatorError
from prorl_service.rewards.math import boxed
from prorl_service.rewards.pool import ScoringAborted
from prorl_service.schemas import FinishReason, Task

NEVER_HOSTILE = "0"
"""Answer to compare with any gold answer: where that fails, the gold answer is to blame."""

log = logging.getLogger(__name__)

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

    def system_prompt(self) -> str:
        """Returns the system message that asks for a box."""
        return "Put your final answer in \\boxed{}: the answer alone, once, without words."

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

    def question(self) -> str:
        """Returns the last message of the user, for judges."""
        return next((one.content for one in reversed(self.task.messages) if one.role == "user"), "")

    def answer(self, rollout: RolloutContext) -> str | None:
        if self._finish_reason is not FinishReason.FINISHED:
            return None
        return boxed(rollout.answer) if self._is_boxed else rollout.answer.strip()


async def score_answer(
    rollout: RolloutContext, scorer: Callable[[str, str], float], answer: str, gold: str
) -> tuple[float, bool]:
    """Returns the answer's score, and whether scoring was stopped, in which case it is wrong.

    Raises `EvaluatorError` if the answer is not to blame: the gold answer cannot be read, or cannot
    be compared with any answer in time.
    """
    try:
        return await rollout.score(scorer, answer, gold), False
    except ScoringAborted as error:
        log.info("%s: the answer cannot be scored: %s", rollout.rollout_id, error)
    try:
        await rollout.score(scorer, NEVER_HOSTILE, gold)
    except ScoringAborted as error:
        raise EvaluatorError(f"no answer can be compared with {gold!r:.200}: {error}") from error
    return 0.0, True
