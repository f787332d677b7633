"""Probes of Harbor tasks: fixed commands in the place of a policy, graded as a policy is.

A probe is the task's own solution, nothing at all, or a cheat. Services do not offer this agent;
`prorl harbor` runs it.
"""

import shlex
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from prorl_service.agents.base import RolloutContext
from prorl_service.agents.harbor.agent import HarborAgent
from prorl_service.agents.harbor.data import Archive, Environment
from prorl_service.agents.loop import run_turns
from prorl_service.sandbox.archives import load_archive
from prorl_service.schemas import FinishReason, Task
from prorl_service.tools.base import Toolset

SOLUTION = "/solution"
MOST_S = 7 * 24 * 3600.0
"""Time-out of a probe's command: RUN's budget ends it."""


class Act(BaseModel):
    """What a probe does in one step."""

    model_config = ConfigDict(extra="forbid")

    script: str = Field("", description="Commands, run by bash in the agent's shell.")
    solution: Archive | None = Field(None, description="Directory with solve.sh, run first.")
    environment: Environment = {}


class Probe(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    acts: list[Act] = Field(description="One for each step; the last one serves further steps.")


class ProbeAgent(HarborAgent):
    name: ClassVar[str] = "harbor_probe"
    data_model: ClassVar[type[BaseModel] | None] = None
    shown_paths: ClassVar[int] = 10_000

    def __init__(self, task: Task) -> None:
        data = dict(task.data)
        self._probe = Probe.model_validate(data.pop("probe"))
        super().__init__(task.model_copy(update={"data": data}))
        self._acted = 0

    @property
    def has_own_loop(self) -> bool:
        return False

    async def turns(self, rollout: RolloutContext, tools: Toolset) -> FinishReason:
        """Acts, then asks the engine for one reply, which says that all is done."""
        act = self._probe.acts[min(self._acted, len(self._probe.acts) - 1)]
        self._acted += 1
        try:
            async with rollout.attempt.turns_budget() as budget:
                await self._perform(act, tools)
        except TimeoutError:
            if not budget.expired():
                raise
            return FinishReason.TIMEOUT
        return await run_turns(rollout, tools)

    async def _perform(self, act: Act, tools: Toolset) -> None:
        lines = [f"export {name}={shlex.quote(value)}" for name, value in act.environment.items()]
        if act.solution is not None:
            await tools.sandbox.restore(SOLUTION, load_archive(act.solution))
            lines += [
                "export DEBIAN_FRONTEND=noninteractive",
                f"chmod +x {SOLUTION}/solve.sh",
                f"{SOLUTION}/solve.sh > /logs/agent/oracle.txt 2>&1",
            ]
        command = "\n".join(["(", *lines, act.script, ") < /dev/null"])
        await tools.sandbox.call_tool("bash", {"command": command}, timeout_s=MOST_S)
