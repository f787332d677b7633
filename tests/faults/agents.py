"""Agents of the fault suite: most have a real shell with work in the background."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel

from prorl_service.agents.base import AgentHandler, Prompt, Restores, RolloutContext, Verdict
from prorl_service.agents.loop import LoopAgent
from prorl_service.errors import TaskError
from prorl_service.sandbox.base import Sandbox, ToolResult
from prorl_service.schemas import FinishReason, Message, Stage
from prorl_service.tools.base import Toolset


class Shell(AgentHandler):
    name: ClassVar[str] = "shell"

    def prompt(self) -> Prompt:
        return Prompt(self.task.messages)

    async def init(self, rollout: RolloutContext) -> None:
        self._sandbox = await rollout.open_sandbox()
        await _bash(self._sandbox, "sleep 1000 &")

    async def run(self, rollout: RolloutContext) -> FinishReason:
        prompt_ids: Sequence[int] = rollout.prompt_ids
        for _ in range(rollout.limits.max_turns):
            prompt_ids = await self._turn(rollout, prompt_ids)
        return FinishReason.FINISHED

    async def _turn(self, rollout: RolloutContext, prompt_ids: Sequence[int]) -> Sequence[int]:
        """Returns the next prompt."""
        await rollout.sample(prompt_ids)
        output = await _bash(self._sandbox, f"sleep {self.task.data.get('sleep', 0.02)}; echo ok")
        return rollout.next_prompt([Message(role="tool", content=output)])

    async def eval(self, rollout: RolloutContext) -> Verdict:
        await asyncio.sleep(0.01)
        return Verdict(1.0)


class Continuing(Shell):
    """An agent that continues after its last whole turn."""

    restores: ClassVar[Restores] = "sandbox"

    async def run(self, rollout: RolloutContext) -> FinishReason:
        prompt_ids = rollout.prompt_ids
        while len(rollout.turns) < rollout.limits.max_turns:
            prompt_ids = await self._turn(rollout, prompt_ids)
            await rollout.turn_ended(prompt_ids)
        return FinishReason.FINISHED


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


class Dial:
    """A tool that leaves a line in a file of this machine, outside every sandbox, then waits."""

    name = "bash"
    description = "Dials."

    class arguments(BaseModel):
        command: str

    def __init__(self, dialled: Path) -> None:
        self._dialled = dialled

    async def call(self, sandbox: Sandbox, arguments: arguments, *, timeout_s: float) -> ToolResult:
        with self._dialled.open("a") as file:
            file.write(f"{arguments.command}\n")
        await asyncio.sleep(0.5)
        return ToolResult("dialled\n")


class Dialling(LoopAgent):
    """An agent whose tool has effects that stay: `task.data` names the file that has them."""

    name: ClassVar[str] = "dialling"
    restores: ClassVar[Restores] = "conversation"
    sandbox_stages: ClassVar[frozenset[Stage]] = frozenset()

    def prompt(self) -> Prompt:
        return Prompt(self.task.messages)

    async def init(self, rollout: RolloutContext) -> None: ...

    async def run(self, rollout: RolloutContext) -> FinishReason:
        dial = Dial(Path(str(self.task.data["dialled"])))
        return await self.turns(rollout, Toolset([dial], None, timeout_s=60))

    async def eval(self, rollout: RolloutContext) -> Verdict:
        return Verdict(1.0)
