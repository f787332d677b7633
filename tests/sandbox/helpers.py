import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from prorl_service.sandbox import provider
from prorl_service.sandbox.base import SandboxLimits, ToolResult
from prorl_service.sandbox.served import ServedSandbox

Kind = Literal["process", "bubblewrap"]
LIMITS = SandboxLimits(memory_mb=512, processes=64, disk_mb=16, file_mb=8, output_bytes=4096)

cached_provider = functools.cache(provider)


def new_sandbox(kind: Kind, limits: SandboxLimits = LIMITS) -> ServedSandbox:
    sandbox = cached_provider(kind).create(image=None, limits=limits)
    assert isinstance(sandbox, ServedSandbox)
    return sandbox


@asynccontextmanager
async def running(kind: Kind, limits: SandboxLimits = LIMITS) -> AsyncIterator[ServedSandbox]:
    sandbox = new_sandbox(kind, limits)
    await sandbox.start()
    try:
        yield sandbox
    finally:
        await sandbox.stop()


async def bash(sandbox: ServedSandbox, command: str, timeout_s: float = 20) -> ToolResult:
    return await sandbox.call_tool("bash", {"command": command}, timeout_s=timeout_s)


async def output(sandbox: ServedSandbox, command: str, timeout_s: float = 20) -> str:
    """Output of a command that must succeed, without the line end."""
    result = await bash(sandbox, command, timeout_s)
    assert result.data["exit_code"] == 0, result
    return result.output.removesuffix("\n")
