"""The agent for STEM questions: the model may compute and look things up, then boxes its answer.

It computes in a sandbox without a network and looks things up with tools of MCP servers, which the
operator names and the task chooses among. An answer is the letter of an option or short text;
docs/math_code_science.md says what counts. A rollout that stops without an answer (turns or tokens
used up) is wrong, not failed.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator

from prorl_service.agents.answers import AnswerAgent, score_answer
from prorl_service.agents.base import RolloutContext, Verdict
from prorl_service.rewards import math
from prorl_service.rewards.judge.cache import Judgement
from prorl_service.rewards.judge.judge import MAX_ANSWER_CHARS
from prorl_service.rewards.stem import normal_text, score_choice, score_value
from prorl_service.schemas import FinishReason, Message, Task
from prorl_service.tools.registry import ToolNames

SYSTEM_PROMPT = """\
Answer the user's question. Use your tools where they help: compute rather than guess, and look up \
what you are not sure of. The sandbox that `ipython` and `bash` run in has no network.

When you are sure, reply without calling a tool. End that reply with {wanted}.\
"""
LETTER = r"the letter of the one right option in a box, such as \boxed{C}"
SHORT_ANSWER = r"the final answer alone in a box, such as \boxed{3.2 \times 10^4 \text{ J}}"

SHORT_ANSWER_COMPONENTS = ("by_text", "by_value", "by_judge", "judge_disagreed", "scoring_failed")


class StemData(BaseModel):
    """`task.data` of this agent. The options are also in the task's message."""

    model_config = ConfigDict(extra="forbid")

    answer: str = Field(
        min_length=1, description="The gold answer: the letter of an option, or text or LaTeX."
    )
    options: dict[str, str] = Field({}, description="Options of a multiple choice: text by letter.")
    answer_pattern: str | None = Field(
        None,
        description="Regular expression for the letter in the reply: its first group, or all of it."
        " The last match counts, and takes precedence over a box.",
    )
    tools: ToolNames = ["ipython", "bash"]
    mcp: list[str] = Field([], description="Names of MCP servers whose tools are offered.")
    judge: bool = Field(
        False, description="Ask the service's judge about short answers that do not match."
    )

    @field_validator("answer_pattern")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"is not a regular expression: {error}") from None
        return pattern

    @model_validator(mode="after")
    def _is_scorable(self) -> Self:
        if not self.options:
            if self.answer_pattern is not None:
                raise ValueError("answer_pattern is for questions with options")
            return self
        if len(self.options) < 2 or not all(re.fullmatch("[A-Z]", key) for key in self.options):
            raise ValueError("give at least two options, under capital letters")
        if self.answer not in self.options:
            raise ValueError("answer is not the letter of an option")
        if self.judge:
            raise ValueError("judge is for questions without options")
        return self


class StemAgent(AnswerAgent):
    name: ClassVar[str] = "stem"
    data_model: ClassVar[type[BaseModel] | None] = StemData

    def __init__(self, task: Task) -> None:
        self.data = StemData.model_validate(task.data)
        super().__init__(task, "boxed", self.data.tools)
        uses = self.uses.also(math.PACKAGES)
        self.uses = replace(uses, mcp=self.data.mcp, judge=self.data.judge)

    def system_prompt(self) -> str:
        return SYSTEM_PROMPT.format(wanted=LETTER if self.data.options else SHORT_ANSWER)

    def solved_by(self, given: JsonValue) -> Sequence[str | Message]:
        """Knows the replies to questions without a pattern of their own."""
        if given is None and self.data.answer_pattern is None:
            return [self.boxed_or_plain(self.data.answer)]
        return super().solved_by(given)

    async def eval(self, rollout: RolloutContext) -> Verdict:
        answer = self.answer(rollout)
        if self.data.options:
            components = {"by_letter": await self._choice(rollout)}
        else:
            components = await self._short_answer(rollout, answer)
        correct = max(score for name, score in components.items() if name.startswith("by_"))
        return Verdict(correct, {"correct": correct, "answered": float(bool(answer)), **components})

    async def _choice(self, rollout: RolloutContext) -> float:
        if self._finish_reason is not FinishReason.FINISHED:
            return 0.0
        data = self.data
        return await rollout.score(
            score_choice, rollout.answer, data.answer, data.options, data.answer_pattern
        )

    async def _short_answer(self, rollout: RolloutContext, answer: str | None) -> dict[str, float]:
        """Tries the ways from cheap to expensive, each only if those before it found no match."""
        components = dict.fromkeys(SHORT_ANSWER_COMPONENTS, 0.0)
        if not answer or len(answer) > MAX_ANSWER_CHARS:
            return components
        gold = self.data.answer
        components["by_text"] = float(normal_text(answer) == normal_text(gold))
        if not components["by_text"]:
            components["by_value"], aborted = await score_answer(rollout, score_value, answer, gold)
            components["scoring_failed"] = float(aborted)
        if self.data.judge and not components["by_text"] and not components["by_value"]:
            assert rollout.services.judge is not None  # checked at submission
            judgement = await rollout.services.judge.compare(
                question=self.question(), gold=gold, answer=answer
            )
            components["by_judge"] = float(judgement is Judgement.SAME)
            components["judge_disagreed"] = float(judgement is Judgement.DISAGREED)
        return components
