"""The agent of the fault suite: turns with a real shell that has work in the background."""

import asyncio
import os
from collections.abc import Sequence
from typing import ClassVar

from prorl_service.agents.base import AgentHandler, Prompt, RolloutContext, Verdict
from prorl_service.errors import TaskError
from prorl_service.sandbox.base import Sandbox
from prorl_service.schemas import FinishReason, Message


class Shell(AgentHandler):
    name: ClassVar[str] = "shell"

    def prompt(self) -> Prompt:
        return Prompt(self.task.messages)

    async def init(self, rollout: RolloutContext) -> None:
        self._sandbox = await rollout.open_sandbox()
        await _bash(self._sandbox, "sleep 1000 &")

    async def run(self, rollout: RolloutContext) -> FinishReason:
        prompt_ids: Sequence[int] = rollout.prompt_ids
        pause_s = self.task.data.get("sleep", 0.02)
        for _ in range(rollout.limits.max_turns):
            await rollout.sample(prompt_ids)
            output = await _bash(self._sandbox, f"sleep {pause_s}; echo ok")
            prompt_ids = rollout.next_prompt([Message(role="tool", content=output)])
        return FinishReason.FINISHED

    async def eval(self, rollout: RolloutContext) -> Verdict:
        await asyncio.sleep(0.01)
        return Verdict(1.0)


class Spy(Shell):
    """An agent that fails with the output of its task's command."""

    name: ClassVar[str] = "spy"

    async def run(self, rollout: RolloutContext) -> FinishReason:
        raise TaskError(await _bash(self._sandbox, str(self.task.data["command"])))


async def _bash(sandbox: Sandbox, command: str) -> str:
    result = await sandbox.call_tool("bash", {"command": command}, timeout_s=60)
    return result.output


class Poison(Shell):
    """An agent that ends the service's process in RUN if its task says so."""

    name: ClassVar[str] = "poison"

    async def run(self, rollout: RolloutContext) -> FinishReason:
        if self.task.data.get("ends_process"):
            os._exit(9)
        return await super().run(rollout)
