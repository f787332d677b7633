"""The agent of the load, as the service runs it: bash turns until the closing one.

It also reports, with the reward, the delay of the service's event loop with rollouts in flight.
"""

from typing import ClassVar

from bench.load.meter import LagProbe
from prorl_service.agents.base import AgentHandler, Prompt, RolloutContext, Verdict
from prorl_service.agents.loop import run_turns
from prorl_service.sandbox.base import Sandbox
from prorl_service.schemas import FinishReason, Task
from prorl_service.tools.base import Toolset, function_schema
from prorl_service.tools.bash import Bash

_probe = LagProbe()
_under_way = 0


class LoadAgent(AgentHandler):
    name: ClassVar[str] = "load"
    tools = (Bash(),)

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._sandbox: Sandbox | None = None

    def prompt(self) -> Prompt:
        return Prompt(self.task.messages, [function_schema(tool) for tool in self.tools])

    async def init(self, rollout: RolloutContext) -> None:
        global _under_way
        if _under_way == 0:
            _probe.start()
        _under_way += 1
        self._sandbox = await rollout.open_sandbox()

    async def run(self, rollout: RolloutContext) -> FinishReason:
        assert self._sandbox is not None
        tools = Toolset(self.tools, self._sandbox, timeout_s=rollout.limits.tool_timeout_s)
        return await run_turns(rollout, tools)

    async def eval(self, rollout: RolloutContext) -> Verdict:
        global _under_way
        _under_way -= 1
        if _under_way == 0:
            _probe.stop()
        lags = {f"lag_p{share}_ms": _probe.quantile_ms(share / 100) for share in (50, 99)}
        return Verdict(1.0, lags)
