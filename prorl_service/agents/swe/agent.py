"""The agent that fixes bugs in real repositories: the model edits them, tests grade its patch.

The repository is in the task's image (SWE-bench's are at /testbed), or in an archive that the task
names by digest and that is unpacked into a sandbox without an image. Only the operator can make an
archive, and its digest pins what is graded. A repository sent with the task would put megabytes
into every row and journal; a path would let a task read the host.

RUN leaves only a patch, the difference to the base commit. EVAL applies it in fresh sandboxes and
runs the data set's tests; docs/swe.md says what that trusts. Tests, their names and the
reference patch never enter the sandbox that the model works in.
"""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import ClassVar

from pydantic import BaseModel, JsonValue

from prorl_service.agents.base import Prompt, Restores, RolloutContext, Verdict, with_system
from prorl_service.agents.loop import ToolAgent
from prorl_service.agents.swe.data import SweData
from prorl_service.agents.swe.evaluation import grade_patch, unapplied
from prorl_service.agents.swe.repository import extract_patch, prepare
from prorl_service.errors import TaskError
from prorl_service.rewards.swe.grade import SweReport
from prorl_service.rewards.swe.log import check_parser
from prorl_service.sandbox.base import Sandbox, SandboxLimits
from prorl_service.schemas import FinishReason, Message, Stage, Task
from prorl_service.tools.bash import Bash
from prorl_service.tools.submit import Submit

log = logging.getLogger(__name__)

LIMITS = SandboxLimits(memory_mb=4096, disk_mb=4096, output_bytes=32 * 1024)
"""Limits of all sandboxes. Observations are cut at 32 KiB (bash) and 8192 characters (editor)."""

ACTIVATE_TIMEOUT_S = 60.0

SYSTEM_PROMPT = """\
You are a software engineer. The repository at {repository} has the problem that the user \
describes. Change its source so that the problem is solved; do not only write about it.

Look at the code first, reproduce the problem with a short script or test, fix its cause with a \
small change, and check the fix by running tests. There is no network. Changes of tests and of \
their settings are not counted. The state of the repository is your answer.\
"""


class SweAgent(ToolAgent):
    name: ClassVar[str] = "swe"
    restores: ClassVar[Restores] = "sandbox"
    sandbox_stages: ClassVar[frozenset[Stage]] = frozenset({Stage.INIT, Stage.EVAL})
    data_model: ClassVar[type[BaseModel] | None] = SweData

    def __init__(self, task: Task) -> None:
        self.data = SweData.model_validate(task.data)
        super().__init__(task, self.data.tools)
        if self.data.environment.log_parser:
            check_parser(self.data.environment.log_parser)
        self.patch: bytes | None = b""
        """Patch that RUN left; None if it was too large."""
        self.report: SweReport | None = None
        self._base = ""

    def prompt(self) -> Prompt:
        """Returns the task's messages, after this agent's system message unless they have one."""
        return self.with_tools(with_system(self._system() + self.how_to_end(), self.task.messages))

    def brief(self) -> str:
        messages = with_system(self._system(), self.task.messages)
        return "\n\n".join(message.content for message in messages)

    def _system(self) -> str:
        return SYSTEM_PROMPT.format(repository=self.data.environment.repository)

    def solved_by(self, given: JsonValue) -> Sequence[str | Message]:
        """Also takes the text of a patch."""
        if not isinstance(given, str):
            return super().solved_by(given)
        repository = self.data.environment.repository
        command = f"cd {repository} && git apply - <<'END_OF_PATCH'\n{given}\nEND_OF_PATCH"
        done = Message.calling(Submit.name) if self.how_to_end() else "Done."
        return [Message.calling(Bash.name, command=command), done]

    async def init(self, rollout: RolloutContext) -> None:
        environment = self.data.environment
        if environment.test_timeout_s >= rollout.limits.eval_timeout_s:
            raise TaskError(
                f"EVAL's budget must exceed test_timeout_s, {environment.test_timeout_s:g} s",
                hint="raise eval_timeout_s; else a hang is a service error instead of reward 0",
            )
        self._sandbox = await rollout.open_sandbox(LIMITS)
        self._base = await prepare(self._sandbox, environment)
        shell = {"command": f"cd {environment.repository}\n{environment.activate}"}
        done = await self._sandbox.call_tool("bash", shell, timeout_s=ACTIVATE_TIMEOUT_S)
        if done.is_error:
            raise TaskError(f"the environment cannot be activated: {done.output[-2000:]}")

    def state(self) -> JsonValue:
        return self._base

    def restore(self, state: JsonValue) -> None:
        self._base = str(state)

    async def run(self, rollout: RolloutContext) -> FinishReason:
        assert self._sandbox is not None
        reason = await self.call_tools(rollout)
        self.patch = await extract_patch(self._sandbox, self.data.environment, self._base)
        return reason

    async def eval(self, rollout: RolloutContext) -> Verdict:
        self.report = await self._graded(rollout)
        self.report.patch = (self.patch or b"").decode(errors="replace")
        log.info("%s: %s", rollout.rollout_id, self.report.summary)
        told = self.report.cut().model_dump(mode="json")
        return Verdict(float(self.report.resolved), self.report.components(), told)

    async def _graded(self, rollout: RolloutContext) -> SweReport:
        report = unapplied(self.data.expected(), self.patch)
        if report is not None or self.patch is None:
            assert report is not None
            return report

        @asynccontextmanager
        async def open_sandbox() -> AsyncIterator[Sandbox]:
            sandbox = await rollout.open_sandbox(LIMITS)
            yield sandbox
            await sandbox.stop()  # at an error, the rollout does

        return await grade_patch(open_sandbox, self.data, self.patch, base=self._base)
