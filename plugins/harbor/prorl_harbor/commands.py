"""Calls of the tool in a sandbox (`inside`): a process's exact output, and its exit code.

The bound on output is for what a command prints; files have no part in it.
"""

import asyncio
import codecs
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from prorl_service.errors import SandboxError
from prorl_service.sandbox.base import Sandbox

NAME = "harbor"
SOURCE = Path(__file__).with_name("inside.py").read_text()

FAILED = 255
"""Exit code of an operation that failed for another reason than the operating system's."""

OUTPUT_BYTES = 16 << 20
"""Bytes kept of each stream of a command: half from the head, half from the tail."""
NO_LIMIT_S = 7 * 24 * 3600.0
"""Time-out of a command without one: Harbor's own budgets end it."""

Stream = Literal["stdout", "stderr"]
STREAMS: tuple[Stream, Stream] = ("stdout", "stderr")
OnText = Callable[[str, Stream], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Ended:
    exit_code: int
    timed_out: bool
    left_out: tuple[int, int]
    """Bytes of each stream that are missing in its middle."""


async def install(sandbox: Sandbox) -> None:
    await sandbox.add_tool(NAME, SOURCE)


async def call(
    sandbox: Sandbox,
    operation: str,
    *,
    timeout_s: float,
    on_part: Callable[[int, bytes], None],
    output_bytes: int = OUTPUT_BYTES,
    **arguments: Any,
) -> Ended:
    """Runs an operation in a process of its own; `on_part` gets 0 or 1 for the stream, and bytes.

    Cancelling it kills the process and its group. Raises `SandboxError`.
    """
    result = await sandbox.call_tool(
        NAME,
        {"operation": operation, "output_bytes": output_bytes, **arguments},
        timeout_s=timeout_s,
        on_output=lambda part: on_part(part[0] - ord("1"), part[1:]),
    )
    match result.data:
        case {
            "exit_code": int(exit_code),
            "timed_out": bool(timed_out),
            "left_out": [int(stdout), int(stderr)],
        }:
            return Ended(exit_code, timed_out, (stdout, stderr))
    raise SandboxError(f"the sandbox broke its protocol: {result.output or result.data}")


async def prepare(
    sandbox: Sandbox, directories: list[str], *, open_to_all: list[str], timeout_s: float
) -> None:
    """Makes directories. Raises `SandboxError`."""
    arguments = {"operation": "prepare", "directories": directories, "open": open_to_all}
    await sandbox.call_tool(NAME, arguments, timeout_s=timeout_s)


class Collected:
    """Both streams of a command, and those who read along."""

    def __init__(self, on_text: OnText | None) -> None:
        self._streams = (bytearray(), bytearray())
        self._on_text = on_text
        self._texts: asyncio.Queue[tuple[str, Stream] | None] = asyncio.Queue()
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = (decoder("replace"), decoder("replace"))

    def append(self, stream: int, data: bytes) -> None:
        self._streams[stream].extend(data)
        if self._on_text is not None:
            text = self._decoders[stream].decode(data)
            self._texts.put_nowait((text, STREAMS[stream]))

    async def pass_on(self) -> None:
        """Gives texts to their reader until `end`."""
        while self._on_text is not None and (item := await self._texts.get()) is not None:
            await self._on_text(*item)

    def end(self) -> None:
        self._texts.put_nowait(None)

    def text(self, stream: int, left_out: int) -> str | None:
        """Returns a stream as Harbor's own environments do: None if it is empty."""
        data = self._streams[stream]
        if left_out:
            half = OUTPUT_BYTES // 2
            note = f"\n[{left_out} bytes left out]\n".encode()
            data = data[:half] + note + data[half:]
        return data.decode("utf-8", "replace") or None


async def run(
    sandbox: Sandbox,
    command: str,
    *,
    cwd: str,
    environment: Mapping[str, str],
    timeout_s: float | None,
    on_text: OnText | None,
) -> tuple[Ended, str | None, str | None]:
    """Returns how a command of bash ended, and its stdout and stderr. Raises `SandboxError`."""
    collected = Collected(on_text)
    reading = asyncio.create_task(collected.pass_on())
    try:
        ended = await call(
            sandbox,
            "run",
            timeout_s=NO_LIMIT_S if timeout_s is None else timeout_s,
            on_part=collected.append,
            command=command,
            cwd=cwd,
            environment=dict(environment),
        )
        collected.end()
        await reading
    finally:
        reading.cancel()
    stdout, stderr = (collected.text(n, ended.left_out[n]) for n in (0, 1))
    return ended, stdout, stderr
