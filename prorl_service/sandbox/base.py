"""The interface of a sandbox: its verbs, its limits and the results of its tools.

A sandbox is single-use: started once, never reset by its user, stopped once. It runs hostile
commands; the module of each kind says what that isolates. `ProcessSandbox` isolates nothing.
"""

import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from prorl_service.sandbox.images.image_config import ImageConfig
from prorl_service.sandbox.layers import Guard, Layer


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Hard limits of one sandbox. A kind that cannot enforce one says so in its docstring."""

    memory_mb: int = 2048
    cpus: float = 2.0
    processes: int = 256
    disk_mb: int = 1024
    file_mb: int = 512
    output_bytes: int = 64 * 1024
    """Bytes kept of one tool call's output: half from the head, half from the tail."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of one tool call inside the sandbox.

    `output` is text for the model. `data` is the tool's: bash gives `exit_code` (int or None),
    `timed_out`, `truncated`, `restarted` (all bool); ipython `status` ("ok", "error",
    "interrupted" or "restarted"), `execution_count` (int or None), `timed_out`, `truncated` and
    `images` (dicts of `mime` and `base64`). Only tools of the service, such as submit, set
    `ends_rollout`; nothing inside a sandbox can.
    """

    output: str
    is_error: bool = False
    data: Mapping[str, Any] = field(default_factory=dict)
    ends_rollout: bool = False


OnOutput = Callable[[bytes], None]
"""Callback for pieces of a tool's output while it runs. Must not block."""


class Sandbox(Protocol):
    """All verbs raise `SandboxError` when the sandbox is gone or breaks its protocol."""

    @property
    def programs(self) -> str:
        """Path inside of `cache.programs_directory`, which is read-only."""

    @property
    def python(self) -> str:
        """Path inside of a Python interpreter, which is there in any image."""

    async def start(self) -> None:
        """Starts the sandbox: it takes calls on return. Leaves nothing behind when it raises."""

    async def ping(self, *, timeout_s: float) -> None:
        """Raises `SandboxError` unless its server answers in time. Does not check its tools."""

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        timeout_s: float,
        on_output: OnOutput | None = None,
    ) -> ToolResult:
        """Runs one tool inside. Waiting for a busy tool counts towards `timeout_s`.

        Failures of a tool, an unknown tool and a time-out are results, not exceptions. Cancelling
        the call also stops the tool inside. `on_output` gets output early, for viewers: at most
        ten times a second, and cut if it is long; the result repeats it.
        """

    async def add_tool(self, name: str, source: str) -> None:
        """Installs a tool inside: trusted source, never a model's, that defines `tool(request)`.

        It runs on the service's own Python and may import only the standard library. Does nothing
        if it is already installed. Raises `SandboxError` if it cannot be loaded.
        """

    async def upload(self, path: str, content: bytes) -> None:
        """Writes a file and makes its parents. Relative paths start at the working directory.

        Raises the matching `OSError` when the file cannot be written.
        """

    async def download(self, path: str, *, max_bytes: int | None = None) -> bytes:
        """Reads a file. Raises the matching `OSError`, such as `FileNotFoundError`.

        Its errno is `EFBIG` for a file above `max_bytes` or `file_mb`, which is not sent.
        """

    async def snapshot(self, path: str) -> bytes:
        """Returns the directory as an uncompressed tar, without an entry for its own root.

        The tar has directories, regular files and symbolic links, which are not followed. Raises
        the matching `OSError`; its errno is `EFBIG` for more than `file_mb`.
        """

    async def restore(self, path: str, tar: bytes) -> None:
        """Unpacks a snapshot over the directory, which is made if it is missing.

        Writes nothing outside the directory: raises `OSError` (`EPERM`) for a tar that tries to.
        """

    async def end_processes(self) -> None:
        """Ends all processes inside, so that files stand still. The next call starts the shell or
        kernel that it needs. `process` cannot do that: raises `SandboxError`."""

    def suspended(self) -> AbstractAsyncContextManager[None]:
        """Suspends all processes inside for the time of the block. Raises as `end_processes`."""

    async def save_layer(self, *, max_bytes: int) -> Layer:
        """Returns all that was written inside and what was deleted, apart from /dev/shm.

        End or suspend the processes before. Raises `OSError` (`EFBIG`) for too many bytes, and
        `SandboxError` if the kind does not know what was written: `process`.
        """

    async def restore_layer(self, layer: Layer, guard: Guard) -> dict[str, int]:
        """Puts a layer on top of the files of an untouched image. Returns what `guard` left out:
        numbers of files, by roots that would declare them as work."""

    async def listen(self, port: int) -> socket.socket:
        """Opens a port on the loopback inside, and returns its socket, which the caller owns: what
        connects to it inside is accepted here. `port` 0 takes a free one.

        A sandbox that isolates nothing opens it on the host's loopback.
        """

    async def stop(self) -> None:
        """Kills everything inside and removes what was made. Idempotent; safe at any time."""


class SandboxProvider(Protocol):
    """Makes sandboxes of one kind. `Sandbox.stop` undoes all that `create` does.

    A kind overrides the methods that it has work for.
    """

    kind: str

    def create(
        self, *, image: str | None, limits: SandboxLimits, user: str | None = None
    ) -> Sandbox:
        """Makes a sandbox. `user` is a name or number of the image (default: root).

        Raises `TaskError` when this kind cannot provide `image`, or `user`.
        """

    def check(self, image: str | None) -> None:
        """Raises the `TaskError` that `create` would. Does no I/O; any thread may call it."""
        return

    async def image_config(self, image: str) -> ImageConfig:
        """Returns what is known of directory, user and variables of an image. Gets the image if it
        is missing. Raises `TaskError`, `SandboxError`."""
        return ImageConfig()

    def prewarm(self, images: Sequence[str | None]) -> None:
        """Prepares images in the background, without waiting. Each call replaces the last.

        `images` are the next ones needed, soonest first, one for each sandbox. All passed `check`.
        """
        return

    async def evict_image(self, wait_s: float) -> bool:
        """Ends something unused, so that its image may be removed. Returns False if nothing is
        unused within `wait_s`."""
        return False

    async def close(self) -> None:
        """Stops what runs for future sandboxes. All sandboxes given out must have been stopped."""
        return

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Elsewhere(SandboxProvider):
    """The provider of a service that runs no rollouts itself: it accepts any image."""

    kind = "elsewhere"

    def create(
        self, *, image: str | None, limits: SandboxLimits, user: str | None = None
    ) -> Sandbox:
        raise AssertionError("this service runs no rollouts")
