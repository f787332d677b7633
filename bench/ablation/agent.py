"""The agent of the workload, as the service runs it: bash turns, then an EVAL that waits.

With a `bash_delay_s` in its task, each bash call waits so long as well: the measured duration of a
call through a polled tmux. tmux's own processor time is left out so, in its favour: sixty-four of
them would keep more than this machine's cores busy.
"""

import asyncio
from typing import ClassVar

from bench.ablation import workload
from bench.load.agent import LoadAgent
from prorl_service.agents.base import RolloutContext, Verdict
from prorl_service.sandbox.base import Sandbox, ToolResult
from prorl_service.schemas import Task
from prorl_service.tools.bash import Bash, BashArguments


class SlowedBash(Bash):
    """bash that takes longer by `delay_s`."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s

    async def call(
        self, sandbox: Sandbox, arguments: BashArguments, *, timeout_s: float
    ) -> ToolResult:
        await asyncio.sleep(self._delay_s)
        return await super().call(sandbox, arguments, timeout_s=timeout_s)


class AblationAgent(LoadAgent):
    name: ClassVar[str] = workload.AGENT

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._seed, self._pace = int(str(task.data["seed"])), float(str(task.data["pace"]))
        if delay_s := float(str(task.data["bash_delay_s"])):
            self.tools = [SlowedBash(delay_s)]

    async def eval(self, rollout: RolloutContext) -> Verdict:
        await asyncio.sleep(workload.eval_s(self._seed, rollout.rollout_id, self._pace))
        return Verdict(workload.end(self._seed, rollout.rollout_id).reward)
