"""The agent of the workload, as the service runs it: bash turns, then an EVAL that waits.

With `bash_delays_ms` in its task, each bash call waits for one of these times as well: measured
durations of the same call through a polled tmux (`actions`). tmux's own processor time is left out
so, in its favour: sixty-four of them would keep more than this machine's cores busy.
"""

import asyncio
import random
from typing import ClassVar

from bench.ablation import workload
from bench.load.agent import LoadAgent
from prorl_service.agents.base import RolloutContext, Verdict
from prorl_service.sandbox.base import Sandbox, ToolResult
from prorl_service.schemas import Task
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


class AblationAgent(LoadAgent):
    name: ClassVar[str] = workload.AGENT

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._seed, self._pace = int(str(task.data["seed"])), float(str(task.data["pace"]))
        delays = task.data["bash_delays_ms"]
        assert isinstance(delays, list)
        if delays_s := [float(str(delay)) / 1e3 for delay in delays]:
            self.tools = [SlowedBash(delays_s)]

    async def eval(self, rollout: RolloutContext) -> Verdict:
        await asyncio.sleep(workload.eval_s(self._seed, rollout.rollout_id, self._pace))
        return Verdict(workload.end(self._seed, rollout.rollout_id).reward)
