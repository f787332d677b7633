"""The agent for mathematics: the model may compute in a sandbox and states its answer in a box.

math-verify scores the last reply against `task.data.answer`.
"""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from prorl_service.agents.answers import AnswerAgent, AnswerFormat, score_answer
from prorl_service.agents.base import RolloutContext, Verdict, put_files
from prorl_service.rewards import math
from prorl_service.rewards.math import score_math
from prorl_service.schemas import Message, Task, Turn
from prorl_service.tools.registry import ToolNames

SYSTEM_PROMPT = """\
Solve the user's problem. Reason step by step and use the tools for what is better computed than \
thought. Give your final answer without a tool call, and put it in \\boxed{}: the answer alone, \
once, without words.\
"""


class MathData(BaseModel):
    """`task.data` of this agent."""

    model_config = ConfigDict(extra="forbid")

    answer: str = Field(min_length=1, description="The gold answer: a number or LaTeX.")
    answer_format: AnswerFormat = "boxed"
    tools: ToolNames = ["bash"]
    files: dict[str, str] = Field({}, description="Files of the working directory: text by path.")
    format_reward: float = Field(
        0.0, ge=0, lt=1, description="Reward of a wrong answer after well-formed calls."
    )


class MathAgent(AnswerAgent):
    name: ClassVar[str] = "math"
    data_model: ClassVar[type[BaseModel] | None] = MathData

    def __init__(self, task: Task) -> None:
        self.data = MathData.model_validate(task.data)
        super().__init__(task, self.data.answer_format, self.data.tools)
        self.uses = self.uses.also(math.PACKAGES)

    def system_prompt(self) -> str:
        return SYSTEM_PROMPT

    def solved_by(self, given: JsonValue) -> Sequence[str | Message]:
        return super().solved_by(given) or [self.boxed_or_plain(self.data.answer)]

    async def init(self, rollout: RolloutContext) -> None:
        await super().init(rollout)
        assert self._sandbox is not None
        await put_files(self._sandbox, self.data.files)

    async def eval(self, rollout: RolloutContext) -> Verdict:
        answer = self.answer(rollout)
        correct, aborted = 0.0, False
        if answer is not None:
            correct, aborted = await score_answer(rollout, score_math, answer, self.data.answer)
        well_formed = float(_is_well_formed(rollout.turns))
        reward = correct or well_formed * self.data.format_reward
        return Verdict(
            reward,
            {
                "correct": correct,
                "answered": float(answer is not None),
                "scoring_failed": float(aborted),
                "well_formed": well_formed,
            },
        )


def _is_well_formed(turns: list[Turn]) -> bool:
    calls = [call for turn in turns for call in turn.tool_calls]
    return bool(calls) and not any(turn.format_error for turn in turns)
