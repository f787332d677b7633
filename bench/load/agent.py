"""The agent of the load, as the service runs it: bash turns until the closing one."""

from typing import ClassVar

from prorl_service.agents.base import Prompt, RolloutContext, Verdict
from prorl_service.agents.loop import ToolAgent
from prorl_service.schemas import FinishReason, Task
from prorl_service.tools.bash import Bash


class LoadAgent(ToolAgent):
    name: ClassVar[str] = "load"

    def __init__(self, task: Task) -> None:
        super().__init__(task, [Bash.name])

    def prompt(self) -> Prompt:
        return self.with_tools(self.task.messages)

    async def init(self, rollout: RolloutContext) -> None:
        self._sandbox = await rollout.open_sandbox()

    async def run(self, rollout: RolloutContext) -> FinishReason:
        return await self.call_tools(rollout)

    async def eval(self, rollout: RolloutContext) -> Verdict:
        return Verdict(1.0)
