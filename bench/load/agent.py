"""The agent of the load, as the service runs it: bash turns until the closing one."""

from typing import ClassVar

from prorl_service.agents.base import AgentHandler, Prompt, RolloutContext, Verdict
from prorl_service.agents.loop import run_turns
from prorl_service.sandbox.base import Sandbox
from prorl_service.schemas import FinishReason, Task
from prorl_service.tools.base import Toolset, function_schema
from prorl_service.tools.bash import Bash


class LoadAgent(AgentHandler):
    name: ClassVar[str] = "load"
    tools = (Bash(),)

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._sandbox: Sandbox | None = None

    def prompt(self) -> Prompt:
        return Prompt(self.task.messages, [function_schema(tool) for tool in self.tools])

    async def init(self, rollout: RolloutContext) -> None:
        self._sandbox = await rollout.open_sandbox()

    async def run(self, rollout: RolloutContext) -> FinishReason:
        assert self._sandbox is not None
        tools = Toolset(self.tools, self._sandbox, timeout_s=rollout.limits.tool_timeout_s)
        return await run_turns(rollout, tools)

    async def eval(self, rollout: RolloutContext) -> Verdict:
        return Verdict(1.0)
