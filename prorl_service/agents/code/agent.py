"""The agent that writes programs: the model edits a file in a sandbox, hidden tests grade it.

RUN leaves only `/workspace/solution.py`. EVAL runs it in a fresh sandbox, case by case;
docs/math_code_science.md says what that trusts. The tests never enter the sandbox that the model
works in.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar

from pydantic import BaseModel, JsonValue

from prorl_service.agents.base import (
    Prompt,
    Restores,
    RolloutContext,
    Verdict,
    put_files,
    with_system,
)
from prorl_service.agents.code.data import CodeData
from prorl_service.agents.code.evaluation import SOLUTION, WALL_PER_CPU, grade_solution
from prorl_service.agents.loop import ToolAgent
from prorl_service.rewards.code.grade import CodeReport
from prorl_service.rewards.code.host_speed import slowness
from prorl_service.schemas import FinishReason, Message, Stage, Task
from prorl_service.tools.str_replace_editor import StrReplaceEditor

log = logging.getLogger(__name__)

MAX_SOLUTION_BYTES = 1 << 20

EVAL_SHARE = 0.8
"""Share of EVAL's budget for running programs, so that one that sleeps fails within the budget."""

SYSTEM_PROMPT = """\
You are a programmer. Write a Python 3 program that solves the user's problem to {path}; nothing \
but that file counts. {what} Hidden test cases are run on it without a network, each in a process \
of its own with {time_limit_s:g} s of CPU time and {memory_mb} MB of memory.

Try the program out with inputs of your own, those of the problem first. Answer without a tool \
call when you are done.\
"""
PRINTS = "It reads standard input and writes its answer, and nothing else, to standard output."
CALLED = (
    "It defines the function `{name}`, or a class `Solution` with it as a method. The function is"
    " called with the arguments and returns the answer."
)

_time_scale: float | None = None


async def time_scale(rollout: RolloutContext) -> float:
    """Returns the factor for time limits on this host; 1 on the reference host and faster ones.

    Measured by the first rollout that asks. Raises `EvaluatorError`.
    """
    global _time_scale
    if _time_scale is None:
        _time_scale = max(1.0, await rollout.score(slowness))
        log.info("CPU time limits are multiplied by %.2f on this host", _time_scale)
    return _time_scale


class CodeAgent(ToolAgent):
    name: ClassVar[str] = "code"
    restores: ClassVar[Restores] = "sandbox"
    sandbox_stages: ClassVar[frozenset[Stage]] = frozenset({Stage.INIT, Stage.EVAL})
    data_model: ClassVar[type[BaseModel] | None] = CodeData

    def __init__(self, task: Task) -> None:
        self.data = CodeData.model_validate(task.data)
        super().__init__(task, self.data.tools)
        self.solution: bytes | None = None
        """Program that RUN left; None if it left nothing that can be graded."""

    def prompt(self) -> Prompt:
        """Returns the task's messages, after this agent's system message unless they have one."""
        name = self.data.tests.fn_name
        system = SYSTEM_PROMPT.format(
            path=SOLUTION,
            what=PRINTS if name is None else CALLED.format(name=name),
            time_limit_s=self.data.time_limit_s,
            memory_mb=self.data.memory_mb,
        )
        return self.with_tools(with_system(system, self.task.messages))

    def solved_by(self, given: JsonValue) -> Sequence[str | Message]:
        """Also takes the text of a program."""
        if not isinstance(given, str):
            return super().solved_by(given)
        create = Message.calling(
            StrReplaceEditor.name, command="create", path=SOLUTION, file_text=given
        )
        return [create, "Done."]

    async def init(self, rollout: RolloutContext) -> None:
        self._sandbox = await rollout.open_sandbox()
        await put_files(self._sandbox, self.data.files)

    async def run(self, rollout: RolloutContext) -> FinishReason:
        assert self._sandbox is not None
        reason = await self.call_tools(rollout)
        with suppress(OSError):  # missing, too large, or not a file
            self.solution = await self._sandbox.download(SOLUTION, max_bytes=MAX_SOLUTION_BYTES)
        return reason

    async def eval(self, rollout: RolloutContext) -> Verdict:
        report = await self._graded(rollout)
        log.info("%s: %s", rollout.rollout_id, report.summary())
        reward = report.share if self.data.partial_credit else float(report.all_passed)
        return Verdict(reward, report.components(), {"outcomes": [*report.outcomes]})

    async def _graded(self, rollout: RolloutContext) -> CodeReport:
        if self.solution is None:
            return CodeReport(len(self.data.tests.inputs), has_solution=False)
        scale = await time_scale(rollout)
        return await grade_solution(
            await rollout.open_sandbox(),
            self.data,
            self.solution,
            time_scale=scale,
            total_s=rollout.limits.eval_timeout_s * EVAL_SHARE / WALL_PER_CPU,
        )
