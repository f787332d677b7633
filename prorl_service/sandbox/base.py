"""What a sandbox is: six verbs, its limits, and what a tool answers. One module per kind beside it.

A sandbox is single-use: started once, never reset by its user, stopped once. It runs hostile
commands; what each kind isolates is said in that kind's module. `ProcessSandbox` isolates nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Hard limits of one sandbox. A kind that cannot enforce one says so in its docstring."""

    memory_mb: int = 2048
    processes: int = 256
    disk_mb: int = 1024
    file_mb: int = 512
    output_bytes: int = 64 * 1024
    """Kept of one tool call's output: half from the head, half from the tail."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What one tool call inside the sandbox answered.

    `output` is text for the model. `data` is the tool's own: bash gives `exit_code` (int or None),
    `timed_out`, `truncated`, `restarted` (all bool).
    """

    output: str
    is_error: bool = False
    data: Mapping[str, Any] = field(default_factory=dict)


class Sandbox(Protocol):
    """All verbs raise `SandboxError` when the sandbox is gone or breaks its protocol."""

    async def start(self) -> None:
        """Ready for tools when it returns. Leaves nothing behind when it raises."""

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any], *, timeout_s: float
    ) -> ToolResult:
        """Run one tool inside. Waiting for a tool that is busy counts towards `timeout_s`.

        What a tool cannot do, an unknown tool and a time-out are results, not exceptions.
        """

    async def upload(self, path: str, content: bytes) -> None:
        """Write a file (parents are made). Relative paths start at the working directory.

        Raises `OSError` of the right kind when the file cannot be written.
        """

    async def download(self, path: str) -> bytes:
        """Raises `OSError` of the right kind, such as `FileNotFoundError`."""

    async def stop(self) -> None:
        """Kill everything inside and remove what was made for it. Idempotent; safe at any time."""


class SandboxProvider(Protocol):
    """Makes sandboxes of one kind. `create` does no work that `Sandbox.stop` would not undo."""

    kind: str

    def create(self, *, image: str | None, limits: SandboxLimits) -> Sandbox:
        """Raises `TaskError` when this kind cannot provide `image`."""
