"""The ipython tool: one persistent IPython kernel per sandbox."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from prorl_service.sandbox.base import Sandbox, ToolResult


class IPythonArguments(BaseModel):
    model_config = ConfigDict(extra="forbid")

    code: str = Field(description="Python code for IPython to run.")
    restart: bool = Field(False, description="Start a new kernel first: variables are lost.")


class IPython:
    name = "ipython"
    description = (
        "Run Python code in a persistent IPython session. Variables and imports are kept. "
        "Top-level await, magics and !commands work; there is no input."
    )
    arguments = IPythonArguments
    packages: ClassVar[Mapping[str, str]] = {"ipykernel": "kernels"}
    """Module that a sandbox's kernel is made of, and the extra that installs it."""
    may_repeat = True

    async def call(
        self, sandbox: Sandbox, arguments: IPythonArguments, *, timeout_s: float
    ) -> ToolResult:
        result = await sandbox.call_tool("ipython", arguments.model_dump(), timeout_s=timeout_s)
        return replace(result, output=result.output.rstrip("\n"))
