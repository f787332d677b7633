"""What a sandbox is: its verbs, its limits, and what a tool answers. One module per kind beside it.

A sandbox is single-use: started once, never reset by its user, stopped once. It runs hostile
commands; what each kind isolates is said in that kind's module. `ProcessSandbox` isolates nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Hard limits of one sandbox. A kind that cannot enforce one says so in its docstring."""

    memory_mb: int = 2048
    cpus: float = 2.0
    processes: int = 256
    disk_mb: int = 1024
    file_mb: int = 512
    output_bytes: int = 64 * 1024
    """Kept of one tool call's output: half from the head, half from the tail."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What one tool call inside the sandbox answered.

    `output` is text for the model. `data` is the tool's own: bash gives `exit_code` (int or None),
    `timed_out`, `truncated`, `restarted` (all bool); ipython `status` ("ok", "error",
    "interrupted" or "restarted"), `execution_count` (int or None), `timed_out`, `truncated` and
    `images` (dicts of `mime` and `base64`). `ends_rollout` is for a tool of the service to
    set, such as submit; nothing inside a sandbox can.
    """

    output: str
    is_error: bool = False
    data: Mapping[str, Any] = field(default_factory=dict)
    ends_rollout: bool = False


OnOutput = Callable[[bytes], None]
"""Takes pieces of a tool's output while it runs. Must not block."""


class Sandbox(Protocol):
    """All verbs raise `SandboxError` when the sandbox is gone or breaks its protocol."""

    async def start(self) -> None:
        """Ready for tools when it returns. Leaves nothing behind when it raises."""

    async def ping(self, *, timeout_s: float) -> None:
        """Raises `SandboxError` unless its server answers in time. Says nothing of its tools."""

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        timeout_s: float,
        on_output: OnOutput | None = None,
    ) -> ToolResult:
        """Run one tool inside. Waiting for a tool that is busy counts towards `timeout_s`.

        What a tool cannot do, an unknown tool and a time-out are results, not exceptions.
        Cancelling the call stops the tool inside as well. `on_output` gets what a viewer would want
        to see early, ten times a second at most and cut where it is much; the result has it again.
        """

    async def add_tool(self, name: str, source: str) -> None:
        """Install a tool inside: source that defines `tool(request)`. Trusted: never a model's.

        It runs on the service's own Python, and may import the standard library only. Does nothing
        if it is there already. Raises `SandboxError` if it cannot be loaded.
        """

    async def upload(self, path: str, content: bytes) -> None:
        """Write a file (parents are made). Relative paths start at the working directory.

        Raises `OSError` of the right kind when the file cannot be written.
        """

    async def download(self, path: str, *, max_bytes: int | None = None) -> bytes:
        """Raises `OSError` of the right kind, such as `FileNotFoundError`.

        Its errno is `EFBIG` for more than `max_bytes`, or `file_mb`: such a file is not sent.
        """

    async def snapshot(self, path: str) -> bytes:
        """The directory as an uncompressed tar, its own root left out.

        Has directories, regular files and symbolic links, which are not followed. Raises `OSError`
        of the right kind; its errno is `EFBIG` for more than `file_mb`.
        """

    async def restore(self, path: str, tar: bytes) -> None:
        """Unpack a snapshot over the directory, which is made if it is not there.

        Nothing is written outside it: raises `OSError` (`EPERM`) for a tar that tries to.
        """

    async def stop(self) -> None:
        """Kill everything inside and remove what was made for it. Idempotent; safe at any time."""


class SandboxProvider(Protocol):
    """Makes sandboxes of one kind. `create` does no work that `Sandbox.stop` would not undo.

    Kinds inherit what they have nothing to do for.
    """

    kind: str

    def create(self, *, image: str | None, limits: SandboxLimits) -> Sandbox:
        """Raises `TaskError` when this kind cannot provide `image`."""

    def check(self, image: str | None) -> None:
        """Raises the `TaskError` that `create` would. Does no I/O; any thread may call it."""
        return

    def prewarm(self, images: Sequence[str | None]) -> None:
        """What will be asked for next, soonest first, once for each sandbox. All passed `check`.

        Each call replaces the last. Does not wait: what can be made ready is, in the background.
        """
        return

    async def evict_image(self, wait_s: float) -> bool:
        """End something that nobody uses, so that its image may be removed. False if there is
        nothing such, and nothing becomes it within `wait_s`."""
        return False

    async def close(self) -> None:
        """Stop what runs for sandboxes to come. All that were given out have been stopped."""
        return

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Elsewhere(SandboxProvider):
    """For a service that runs no rollouts itself: any image will do, as far as it knows."""

    kind = "elsewhere"

    def create(self, *, image: str | None, limits: SandboxLimits) -> Sandbox:
        raise AssertionError("no rollout is run here")
