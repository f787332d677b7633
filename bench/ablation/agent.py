"""The agent of the workload, as the service runs it: bash turns, then an EVAL that waits.

With `bash_delays_ms` in its task, each bash call waits for one of these times as well: measured
durations of the same call through a polled tmux (`actions`). tmux's own processor time is left out
so, in its favour: sixty-four of them would keep more than this machine's cores busy.
"""

import asyncio
import random
from typing import ClassVar

from bench.ablation import workload
from prorl_service.agents.base import AgentHandler, Prompt, RolloutContext, Verdict
from prorl_service.agents.loop import run_turns
from prorl_service.sandbox.base import Sandbox, ToolResult
from prorl_service.schemas import FinishReason, Task
from prorl_service.tools.base import Tool, Toolset, function_schema
from prorl_service.tools.bash import Bash, BashArguments


class SlowedBash(Bash):
    """bash that takes longer by one of `delays_s`, chosen at random."""

    def __init__(self, delays_s: list[float]) -> None:
        self._delays_s = delays_s

    async def call(
        self, sandbox: Sandbox, arguments: BashArguments, *, timeout_s: float
    ) -> ToolResult:
        await asyncio.sleep(random.choice(self._delays_s))
        return await super().call(sandbox, arguments, timeout_s=timeout_s)


class AblationAgent(AgentHandler):
    name: ClassVar[str] = workload.AGENT

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._seed, self._pace = int(str(task.data["seed"])), float(str(task.data["pace"]))
        delays = task.data["bash_delays_ms"]
        assert isinstance(delays, list)
        delays_s = [float(str(delay)) / 1e3 for delay in delays]
        self._tools: list[Tool] = [SlowedBash(delays_s) if delays_s else Bash()]
        self._sandbox: Sandbox | None = None

    def prompt(self) -> Prompt:
        return Prompt(self.task.messages, [function_schema(tool) for tool in self._tools])

    async def init(self, rollout: RolloutContext) -> None:
        self._sandbox = await rollout.open_sandbox()

    async def run(self, rollout: RolloutContext) -> FinishReason:
        assert self._sandbox is not None
        tools = Toolset(self._tools, self._sandbox, timeout_s=rollout.limits.tool_timeout_s)
        return await run_turns(rollout, tools)

    async def eval(self, rollout: RolloutContext) -> Verdict:
        await asyncio.sleep(workload.eval_s(self._seed, rollout.rollout_id, self._pace))
        return Verdict(workload.end(self._seed, rollout.rollout_id).reward)
