"""The submit tool: the model says that it is done. Nothing runs inside the sandbox."""

from pydantic import BaseModel, ConfigDict, Field

from prorl_service.sandbox.base import Sandbox, ToolResult


class SubmitArguments(BaseModel):
    model_config = ConfigDict(extra="forbid")

    message: str = Field("", description="The final answer, or what was done.")


class Submit:
    name = "submit"
    description = "Finish the task. Nothing can be done after it."
    arguments = SubmitArguments
    may_repeat = True

    async def call(
        self, sandbox: Sandbox, arguments: SubmitArguments, *, timeout_s: float
    ) -> ToolResult:
        return ToolResult("", ends_rollout=True)
