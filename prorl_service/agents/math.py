"""Mathematics with a shell: the model may compute in a sandbox, then states its answer.

The last reply is scored with math-verify against `task.data.answer`. A rollout that stops without
an answer (turns or tokens used up) is wrong, not failed.
"""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from prorl_service.agents.base import AgentHandler, Prompt, RolloutContext, Verdict
from prorl_service.agents.loop import run_turns
from prorl_service.errors import TaskError
from prorl_service.rewards.math import score_math
from prorl_service.sandbox.base import Sandbox
from prorl_service.schemas import FinishReason, Task, Turn
from prorl_service.tokens.tool_calls import parse_reply
from prorl_service.tools.base import Toolset, function_schema
from prorl_service.tools.bash import Bash


class MathData(BaseModel):
    """`task.data` of this agent."""

    model_config = ConfigDict(extra="forbid")

    answer: str = Field(min_length=1, description="The gold answer: a number or LaTeX.")
    files: dict[str, str] = Field({}, description="Put into the working directory: path to text.")
    format_reward: float = Field(
        0.0, ge=0, lt=1, description="For a wrong answer that was reached by well-formed calls."
    )


class MathAgent(AgentHandler):
    name: ClassVar[str] = "math"
    tools = (Bash(),)

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.data = MathData.model_validate(task.data)
        self._sandbox: Sandbox | None = None
        self._finish_reason = FinishReason.ERROR

    def prompt(self) -> Prompt:
        return Prompt(self.task.messages, [function_schema(tool) for tool in self.tools])

    async def init(self, rollout: RolloutContext) -> None:
        self._sandbox = await rollout.open_sandbox()
        for path, text in self.data.files.items():
            try:
                await self._sandbox.upload(path, text.encode())
            except OSError as error:
                raise TaskError(f"cannot put {path!r} into the sandbox: {error}") from error

    async def run(self, rollout: RolloutContext) -> FinishReason:
        assert self._sandbox is not None
        tools = Toolset(self.tools, self._sandbox, timeout_s=rollout.limits.tool_timeout_s)
        self._finish_reason = await run_turns(rollout, tools)
        return self._finish_reason

    async def eval(self, rollout: RolloutContext) -> Verdict:
        correct = 0.0
        if self._finish_reason is FinishReason.FINISHED:
            answer = parse_reply(rollout.turns[-1].text).content
            correct = await rollout.score(score_math, answer, self.data.answer)
        well_formed = float(_is_well_formed(rollout.turns))
        reward = correct or well_formed * self.data.format_reward
        return Verdict(reward, {"correct": correct, "well_formed": well_formed})


def _is_well_formed(turns: list[Turn]) -> bool:
    calls = [call for turn in turns for call in turn.tool_calls]
    return bool(calls) and not any(turn.format_error for turn in turns)
