"""Our own sandboxes, from the least to the most isolated, and how to call their tools."""

from collections.abc import Awaitable, Callable

from prorl_service.sandbox.base import Sandbox, SandboxLimits, ToolResult

LIMITS = SandboxLimits(output_bytes=2 << 20)
"""Limits that keep all output, as the others do."""
TIMEOUT_S = 60.0
SIF, BUBBLEWRAP = "ours, apptainer SIF", "ours, bubblewrap"
RUNGS = {"ours, process": "process", BUBBLEWRAP: "bubblewrap", SIF: "apptainer"}
"""Kinds of sandboxes, keyed by what the tables call them."""


def tool(sandbox: Sandbox, name: str, argument: str) -> Callable[[str], Awaitable[str]]:
    """Returns a function that runs text with a tool, which takes it in `argument`."""

    async def run(text: str) -> str:
        result: ToolResult = await sandbox.call_tool(name, {argument: text}, timeout_s=TIMEOUT_S)
        if result.is_error:
            raise RuntimeError(f"{name} failed: {result.output[-500:]}")
        return result.output

    return run
