"""A tool of your own, offered by an agent of your own beside bash.

prorl try examples/own_tool.py:Librarian --engine http://localhost:8000 --task '{
    "messages": [{"role": "user", "content": "Write a haiku to a.txt. How many words has it?"}]}'
"""

import shlex
from typing import ClassVar

from pydantic import BaseModel, Field

from prorl_service.agents.base import Prompt, Restores, RolloutContext, Verdict
from prorl_service.agents.loop import LoopAgent
from prorl_service.sandbox.base import Sandbox, ToolResult
from prorl_service.schemas import FinishReason
from prorl_service.tools.base import Tool, Toolset, function_schema
from prorl_service.tools.bash import Bash


class WordCountArguments(BaseModel):
    path: str = Field(description="The file.")


class WordCount:
    name = "word_count"
    description = "Count the words of a file."
    arguments = WordCountArguments
    may_repeat = True  # it has effects in the sandbox alone

    async def call(
        self, sandbox: Sandbox, arguments: WordCountArguments, *, timeout_s: float
    ) -> ToolResult:
        command = {"command": f"wc -w < {shlex.quote(arguments.path)}"}
        return await sandbox.call_tool("bash", command, timeout_s=timeout_s)


TOOLS: list[Tool] = [Bash(), WordCount()]


class Librarian(LoopAgent):
    name: ClassVar[str] = "librarian"
    restores: ClassVar[Restores] = "sandbox"  # continues after a restart, with its files

    def prompt(self) -> Prompt:
        return Prompt(self.task.messages, [function_schema(tool) for tool in TOOLS])

    async def init(self, rollout: RolloutContext) -> None:
        self.sandbox = await rollout.open_sandbox()

    async def run(self, rollout: RolloutContext) -> FinishReason:
        toolset = Toolset(TOOLS, self.sandbox, timeout_s=rollout.limits.tool_timeout_s)
        return await self.turns(rollout, toolset)

    async def eval(self, rollout: RolloutContext) -> Verdict:
        counts = [call.output for turn in rollout.turns for call in turn.tool_calls[-1:]]
        return Verdict(float(bool(counts) and counts[-1].strip() in rollout.answer))
