"""The bash tool: one persistent shell per sandbox."""

from dataclasses import replace

from pydantic import BaseModel, ConfigDict, Field

from prorl_service.sandbox.base import Sandbox, ToolResult


class BashArguments(BaseModel):
    model_config = ConfigDict(extra="forbid")

    command: str = Field(description="The command to run.")


class Bash:
    name = "bash"
    description = "Run a command in a persistent bash shell."
    arguments = BashArguments
    may_repeat = True

    async def call(
        self, sandbox: Sandbox, arguments: BashArguments, *, timeout_s: float
    ) -> ToolResult:
        call = {"command": arguments.command}
        result = await sandbox.call_tool("bash", call, timeout_s=timeout_s)
        return replace(result, output=result.output.rstrip("\n"))
