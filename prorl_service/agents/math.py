"""The agent for mathematics: the model may compute in a sandbox and states its answer in a box.

math-verify scores the last reply against `task.data.answer`. A rollout that stops without an answer
(turns or tokens used up, no box) is wrong, not failed.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from prorl_service.agents.base import (
    Prompt,
    RolloutContext,
    Verdict,
    put_files,
    with_system,
)
from prorl_service.agents.loop import LoopAgent
from prorl_service.agents.scoring import score_answer
from prorl_service.rewards.math import boxed, score_math
from prorl_service.sandbox.base import Sandbox
from prorl_service.schemas import FinishReason, Task, Turn
from prorl_service.tools.base import Tool, Toolset, function_schema
from prorl_service.tools.bash import Bash
from prorl_service.tools.ipython import IPython

TOOLS: dict[str, Tool] = {"bash": Bash(), "ipython": IPython()}

SYSTEM_PROMPT = """\
Solve the user's problem. Reason step by step and use the tools for what is better computed than \
thought. Give your final answer without a tool call, and put it in \\boxed{}: the answer alone, \
once, without words.\
"""


class MathData(BaseModel):
    """`task.data` of this agent."""

    model_config = ConfigDict(extra="forbid")

    answer: str = Field(min_length=1, description="The gold answer: a number or LaTeX.")
    answer_format: Literal["boxed", "plain"] = Field(
        "boxed",
        description="Part of the last reply that counts: its last `\\boxed{}`, or all of it.",
    )
    tools: list[Literal["bash", "ipython"]] = Field(
        ["bash"], description="Tools that the model may call."
    )
    files: dict[str, str] = Field({}, description="Files of the working directory: text by path.")
    format_reward: float = Field(
        0.0, ge=0, lt=1, description="Reward of a wrong answer after well-formed calls."
    )


class MathAgent(LoopAgent):
    name: ClassVar[str] = "math"
    data_model: ClassVar[type[BaseModel] | None] = MathData
    offers: ClassVar[Sequence[Tool]] = tuple(TOOLS.values())

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.data = MathData.model_validate(task.data)
        self.tools = [TOOLS[name] for name in dict.fromkeys(self.data.tools)]
        self._sandbox: Sandbox | None = None
        self._finish_reason = FinishReason.ERROR

    def prompt(self) -> Prompt:
        """Returns the task's messages, after this agent's system message if it asks for a box and
        they have none."""
        messages = list(self.task.messages)
        if self.data.answer_format == "boxed":
            messages = with_system(SYSTEM_PROMPT, messages)
        return Prompt(messages, [function_schema(tool) for tool in self.tools])

    async def init(self, rollout: RolloutContext) -> None:
        self._sandbox = await rollout.open_sandbox()
        await put_files(self._sandbox, self.data.files)

    async def run(self, rollout: RolloutContext) -> FinishReason:
        assert self._sandbox is not None
        tools = Toolset(self.tools, self._sandbox, timeout_s=rollout.limits.tool_timeout_s)
        self._finish_reason = await self.turns(rollout, tools)
        return self._finish_reason

    async def eval(self, rollout: RolloutContext) -> Verdict:
        answer = self._answer(rollout)
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

    def _answer(self, rollout: RolloutContext) -> str | None:
        if self._finish_reason is not FinishReason.FINISHED:
            return None
        reply = rollout.answer
        return boxed(reply) if self.data.answer_format == "boxed" else reply


def _is_well_formed(turns: list[Turn]) -> bool:
    calls = [call for turn in turns for call in turn.tool_calls]
    return bool(calls) and not any(turn.format_error for turn in turns)
