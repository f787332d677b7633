"""The agent that runs another agent's program, a harness, unmodified, in the rollout's sandbox.

The program believes that it talks to OpenAI or Anthropic; what answers is the policy, by the
gateway. After a restart of the service the program starts again, and gets the replies that it had.
Another agent prepares the sandbox before and grades after it, just as after its own turns:
this one only takes the place of its loop.
"""

import asyncio
import contextlib
import signal
from collections.abc import Mapping
from typing import ClassVar, Self

from pydantic import BaseModel, JsonValue

from prorl_service.agents.base import AgentHandler, Prompt, Restores, RolloutContext, Verdict
from prorl_service.agents.harness.data import HarnessData
from prorl_service.agents.harness.program import Ended, Program
from prorl_service.agents.loop import LoopAgent
from prorl_service.errors import AgentError, InvalidRequest, TaskError
from prorl_service.gateway.app import application
from prorl_service.gateway.rollout import RolloutGateway
from prorl_service.gateway.serving import served
from prorl_service.schemas import FinishReason, Message, Stage, Task
from prorl_service.tools.base import Toolset

GRACE_S = 2.0
"""Seconds for the program to end by itself when nothing more is sampled for it."""
TAIL_CHARS = 2000
KILLED = (128 + signal.SIGKILL, 128 + signal.SIGTERM)
"""Exit codes of a program that was killed: the policy's commands did that, so it is graded."""


class HarnessAgent(AgentHandler):
    """Runs an agent's own program, such as Claude Code, against the policy; another agent grades.

    `task.data.harness` names a preset, `task.data.agent` the agent that grades, with its own data
    in `task.data.data`.
    """

    name: ClassVar[str] = "harness"
    restores: ClassVar[Restores] = "replay"
    sandbox_stages: ClassVar[frozenset[Stage]] = frozenset({Stage.INIT, Stage.EVAL})
    data_model: ClassVar[type[BaseModel] | None] = HarnessData
    graders: ClassVar[Mapping[str, type[AgentHandler]]] = {}

    @classmethod
    def grading_with(cls, agents: Mapping[str, type[AgentHandler]]) -> type[Self]:
        """Returns this class with the agents that tasks may name; `agents` may grow later."""
        names = {"__module__": cls.__module__, "__doc__": cls.__doc__, "graders": agents}
        return type(cls.__name__, (cls,), names)

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.data = HarnessData.model_validate(task.data)
        self.grader = self._grader()
        self.grader.turns = self._turns
        self.uses = self.grader.uses
        self._figures: dict[str, float] = {}
        self._ended: Ended | None = None
        self._gateway: RolloutGateway | None = None
        self._program = Program(self.data)

    def _grader(self) -> LoopAgent:
        """Raises `InvalidRequest`."""
        found = self.graders.get(self.data.agent)
        if found is None or not issubclass(found, LoopAgent):
            usable = [name for name, one in self.graders.items() if issubclass(one, LoopAgent)]
            raise InvalidRequest(
                f"data.agent: a harness cannot run as {self.data.agent!r}",
                hint=f"name one of {', '.join(sorted(usable))}",
            )
        return found(self.task.model_copy(update={"agent": found.name, "data": self.data.data}))

    def check_host(self) -> None:
        self._program.find()

    def prompt(self) -> Prompt:
        """Returns the task as the program gets it; its own first prompt is known only to it."""
        return Prompt([Message(role="user", content=self.grader.brief())])

    async def init(self, rollout: RolloutContext) -> None:
        self._program.find()
        await self.grader.init(rollout)

    async def run(self, rollout: RolloutContext) -> FinishReason:
        return await self.grader.run(rollout)

    async def eval(self, rollout: RolloutContext) -> Verdict:
        verdict = await self.grader.eval(rollout)
        figures = {f"harness_{name}": value for name, value in self._figures.items()}
        return Verdict(
            verdict.reward,
            {**verdict.components, **figures},
            {**(verdict.report or {}), "harness": self._report()},
        )

    def _report(self) -> dict[str, JsonValue]:
        gateway, ended = self._gateway, self._ended
        return {
            **self._program.described(),
            "exit_code": None if ended is None else ended.exit_code,
            "output": "" if ended is None else ended.output[-TAIL_CHARS:],
            "without_effect": [*sorted(gateway.counts.without_effect)] if gateway else [],
            "left_out": [*sorted(gateway.counts.left_out)] if gateway else [],
        }

    # --- in place of the loop -------------------------------------------------------------------

    async def _turns(self, rollout: RolloutContext, tools: Toolset) -> FinishReason:
        """Raises `BackendError`, `SandboxError`, `AgentError` for a program that fails or never
        asked the policy, and `TaskError` for one whose first request is too long."""
        gateway = RolloutGateway(rollout, strict=self.data.history == "harness")
        self._gateway = gateway
        try:
            async with rollout.turns_budget() as budget:
                reason = await self._driven(rollout, gateway, tools)
        except TimeoutError:
            if not budget.expired():
                raise
            reason = FinishReason.TIMEOUT
        printed = "" if self._ended is None else self._ended.output
        for name, value in gateway.mark(self.data.train, printed).items():
            self._figures[name] = self._figures.get(name, 0.0) + value
        return reason

    async def _driven(
        self, rollout: RolloutContext, gateway: RolloutGateway, tools: Toolset
    ) -> FinishReason:
        if self.data.where == "outside":
            return await self._outside(rollout, gateway)
        listener = await tools.sandbox.listen(0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with served(application(gateway), listener, rollout.services.connections):
            start = self._program.start(rollout, tools.sandbox, url, self.grader.brief())
            program = asyncio.create_task(start)
            try:
                await asyncio.wait((program, gateway.finish), return_when="FIRST_COMPLETED")
                if gateway.finish.done():
                    await asyncio.wait((program,), timeout=GRACE_S)
            finally:
                program.cancel()  # does nothing to one that has ended
                await asyncio.wait((program,))
        if gateway.finish.done():
            with contextlib.suppress(asyncio.CancelledError):
                self._ended = program.result()
            return gateway.finish.result()
        self._ended = program.result()
        return self._reason(rollout, gateway, self._ended)

    async def _outside(self, rollout: RolloutContext, gateway: RolloutGateway) -> FinishReason:
        """Waits until somebody says that the program has ended, or it may not go on."""
        with rollout.services.doors.opened(rollout.rollout_id, application(gateway)) as door:
            ended = asyncio.create_task(door.ended.wait())
            try:
                await asyncio.wait((ended, gateway.finish), return_when="FIRST_COMPLETED")
            finally:
                ended.cancel()
        if gateway.finish.done():
            return gateway.finish.result()
        self._ended = Ended(0, "")
        return self._reason(rollout, gateway, self._ended)

    def _reason(
        self, rollout: RolloutContext, gateway: RolloutGateway, ended: Ended
    ) -> FinishReason:
        if not rollout.turns and gateway.counts.too_long:
            raise TaskError(
                f"the first request of {self._program.name} is longer than the model's context of"
                f" {rollout.max_model_len} tokens",
                hint="serve the model with more, or choose a harness with a shorter prompt",
            )
        if not rollout.turns:
            raise AgentError(
                f"{self._program.name} ended with code {ended.exit_code} and never asked the"
                f" policy: {ended.output[-TAIL_CHARS:].strip() or 'it printed nothing'}"
            )
        if ended.exit_code in (0, *KILLED):
            return FinishReason.FINISHED
        refusal = gateway.refusal
        # Some programs give up at a reply that was cut, as pi does since 1.6.
        is_cut = refusal is None and rollout.turns[-1].finish_reason == "length"
        if gateway.counts.too_long or is_cut:
            return FinishReason.LENGTH
        cause = "" if refusal is None else f" after the gateway refused a request ({refusal})"
        raise AgentError(
            f"{self._program.name} ended with code {ended.exit_code}{cause}:"
            f" {ended.output[-TAIL_CHARS:].strip() or 'it printed nothing'}"
        )
