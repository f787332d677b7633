"""A sandbox whose tools are served by an execution server, forked from a zygote.

Owns the server's process and the connection to it, from `start` to the end of `stop`. There is no
socket file: the server's standard input is one end of a socket pair, so nothing else can reach it,
and the death of the service closes it, which ends the sandbox. Answers are not trusted: what is
larger than agreed is refused.
"""

import asyncio
import errno
import json
import os
import socket
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from prorl_service.errors import AgentError, SandboxError
from prorl_service.sandbox.base import OnOutput, SandboxLimits, ToolResult
from prorl_service.sandbox.guest.execd import fd_passing
from prorl_service.sandbox.host import bundle, cgroups
from prorl_service.sandbox.host.cgroups import ControlGroup
from prorl_service.sandbox.host.direct_shell import DirectShell
from prorl_service.sandbox.host.handover import Handover, checked_listener
from prorl_service.sandbox.host.processes import Process, close_in_forks
from prorl_service.sandbox.host.rpc import Channel, RefusedInside
from prorl_service.sandbox.host.zygotes import ContainerDied, Zygote, Zygotes
from prorl_service.sandbox.layers import PIECE_BYTES, Guard, Layer

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 5.0
"""Seconds for a stopped sandbox to end; then its process group is killed."""

MARGIN_S = 30.0
"""Seconds beyond a request's budget for the server to end it and to answer, on a busy host."""

FILE_TIMEOUT_S = 60.0
LAYER_TIMEOUT_S = 600.0
"""Seconds for a layer, which may have gigabytes; the stage's own budget is usually shorter."""
PROCESSES_TIMEOUT_S = 5.0
"""Seconds to end or suspend all processes of a sandbox."""

MAX_REFUSED_BYTES = 16 << 20
"""Maximum size of the list of what a guard refused of one piece."""


class RemoteSandbox(ABC):
    _zygote: Zygote | None = None

    def __init__(
        self, zygotes: Zygotes, image: str, limits: SandboxLimits, user: str | None = None
    ) -> None:
        """`image` is the image's key in `zygotes`; `user` is one of the image."""
        self._zygotes = zygotes
        self._user = user
        self._image = image
        self._limits = limits
        self._child: Process | None = None
        self._channel: Channel | None = None
        self._handover: Handover | None = None
        self._shell: DirectShell | None = None
        self._added_tools: dict[str, str] = {}
        self._starting: asyncio.Task[None] | None = None
        self._start_ended = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None
        self._group: ControlGroup | None = None

    @property
    def programs(self) -> str:
        return bundle.PROGRAMS_INSIDE

    @property
    def python(self) -> str:
        return f"{bundle.INSIDE}/bin/python3"

    @property
    def server_pid(self) -> int | None:
        """Process id of the execution server, as seen from here. For inspection."""
        return None if self._child is None else self._child.pid

    @abstractmethod
    def _order(self) -> dict[str, object]:
        """Returns what `execd.zygote` calls an order. Raises `OSError`."""

    async def spawn(self, connection: int) -> Process:
        """Starts the server with `connection` as its standard input."""
        self._zygote, process = await self._zygotes.fork(self._image, self._order(), connection)
        return process

    def _end(self, child: Process) -> None:
        """Makes everything inside end, `child` last. Works at any time after `spawn`."""
        child.kill()

    async def clean_up(self) -> None:
        """Removes what was made, after everything has ended or if nothing was spawned."""
        if self._zygote is not None:
            self._zygotes.release(self._zygote)

    async def start(self) -> None:
        if self._starting or self._closing:
            raise SandboxError("a sandbox can be started only once", retryable=False)
        self._starting = asyncio.create_task(self._start())
        try:
            await self._starting
        except BaseException as error:
            self._start_ended.set()
            stopped = self._closing is not None
            await self.stop()
            if stopped and self._starting.cancelled():
                raise SandboxError("the sandbox was stopped") from None
            if isinstance(error, OSError):
                raise SandboxError(f"the sandbox could not be started: {error}") from error
            raise
        self._start_ended.set()

    async def _start(self) -> None:
        ours, child = await self._connect()
        child.ended.add_done_callback(lambda _: self._close_descriptors())
        channel = Channel(
            # Text decoded with replacement is up to three times as long as the kept output.
            max_payload_bytes=(self._limits.file_mb << 20) + 4 * self._limits.output_bytes,
            why_lost=self._why_lost,
        )
        ours.setblocking(False)
        close_in_forks(ours)
        await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=ours)
        self._channel = channel
        self._limit_together(child)
        # The server starts nothing before its first request.
        await channel.request("ping", timeout_s=START_TIMEOUT_S)

    async def _connect(self) -> tuple[socket.socket, Process]:
        """Connects to a new server. A container that died unnoticed is replaced."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._handover = Handover(fd_passing.offer(ours))
                self._shell = DirectShell(
                    self._handover,
                    max_bytes=self._limits.output_bytes,
                    give_back=self._return_shell,
                )
                self._child = child = await self.spawn(theirs.fileno())
            except ContainerDied:
                ours.close()
                self._close_descriptors()
            except BaseException:
                ours.close()
                raise
            else:
                return ours, child
        return await self._connect()

    def _limit_together(self, child: Process) -> None:
        delegation = cgroups.delegation()
        if delegation is not None:
            self._group = delegation.group(self._limits)
            self._group.add(child.pid)

    def _why_lost(self) -> str:
        if self._closing is not None or self._child is None:
            return "the sandbox was stopped"
        return f"the sandbox died: {self._child.messages() or 'it was killed'}"

    async def ping(self, *, timeout_s: float) -> None:
        await self._request("ping", timeout_s=timeout_s, margin_s=0)

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        timeout_s: float,
        on_output: OnOutput | None = None,
    ) -> ToolResult:
        if name == "bash" and self._shell is not None:
            return await self._call_bash(self._shell, dict(arguments), timeout_s, on_output)
        return _tool_result(*await self._request_tool(name, dict(arguments), timeout_s, on_output))

    async def _call_bash(
        self,
        shell: DirectShell,
        arguments: dict[str, Any],
        timeout_s: float,
        on_output: OnOutput | None,
    ) -> ToolResult:
        """Runs a command in the lent shell if possible, otherwise by the execution server."""
        began_at = time.monotonic()
        while shell.running is not None:
            await asyncio.wait([shell.running])
        command = arguments.get("command")
        if on_output is None and isinstance(command, str):
            try:
                result = await shell.run(command, timeout_s)
            except asyncio.CancelledError:
                self._abandon(shell, arguments)
                raise
            if result is not None:
                return result
        read, nonce = shell.give_up()
        arguments |= _begun(nonce) | {"elapsed_s": time.monotonic() - began_at}
        answer = await self._request_tool("bash", arguments, timeout_s, on_output, payload=read)
        if answer[0].get("lent"):
            shell.take()
        return _tool_result(*answer)

    def _abandon(self, shell: DirectShell, arguments: dict[str, Any]) -> None:
        """Returns the shell, and cancels its command, after the caller has left."""
        read, nonce = shell.give_up()
        if nonce is None:
            self._return_shell(read)
        elif self._channel is not None:
            arguments |= _begun(nonce)
            self._channel.tell("tool", payload=read, name="bash", arguments=arguments)

    def _return_shell(self, read: bytes) -> None:
        if self._channel is not None:
            self._channel.tell("return_shell", payload=read)

    async def _request_tool(
        self,
        name: str,
        arguments: dict[str, Any],
        timeout_s: float,
        on_output: OnOutput | None,
        payload: bytes = b"",
    ) -> tuple[dict[str, Any], bytes]:
        return await self._request(
            "tool",
            timeout_s=timeout_s,
            failed=f"the tool {name!r} failed inside",
            payload=payload,
            on_part=on_output,
            stream=on_output is not None,
            name=name,
            arguments=arguments,
        )

    async def add_tool(self, name: str, source: str) -> None:
        if self._added_tools.get(name) == source:
            return
        await self._request(
            "add_tool",
            timeout_s=FILE_TIMEOUT_S,
            failed=f"the tool {name!r} could not be added",
            retryable=False,
            payload=source.encode(),
            name=name,
        )
        self._added_tools[name] = source

    # --- files, layers, processes ---------------------------------------------------------------

    async def upload(self, path: str, content: bytes) -> None:
        """Writes a file. Raises the matching `OSError` when it cannot be written."""
        if not isinstance(content, bytes):
            raise AgentError(
                f"upload({path!r}) takes bytes, not {type(content).__name__}",
                hint="a text's bytes: text.encode()",
            )
        await self._file_request("upload", path, content)

    async def download(self, path: str, *, max_bytes: int | None = None) -> bytes:
        """Reads a file. Raises the matching `OSError` when it is missing or cannot be read."""
        limit = {} if max_bytes is None else {"max_bytes": max_bytes}
        return await self._file_request("download", path, b"", **limit)

    async def snapshot(self, path: str) -> bytes:
        return await self._file_request("snapshot", path)

    async def restore(self, path: str, tar: bytes) -> None:
        await self._file_request("restore", path, tar)

    async def end_processes(self) -> None:
        await self._request("end_processes", timeout_s=PROCESSES_TIMEOUT_S)

    @asynccontextmanager
    async def suspended(self) -> AsyncIterator[None]:
        await self._request("suspend_processes", timeout_s=PROCESSES_TIMEOUT_S)
        try:
            yield
        finally:
            await self._request("resume_processes", timeout_s=PROCESSES_TIMEOUT_S)

    async def save_layer(self, *, max_bytes: int) -> Layer:
        layer = Layer()
        await self._layer_request("save_layer", on_part=layer.append, max_bytes=max_bytes)
        return layer

    async def restore_layer(self, layer: Layer, guard: Guard) -> dict[str, int]:
        refused: Counter[str] = Counter()
        pieces = layer.pieces(min(PIECE_BYTES, self._limits.file_mb << 20))
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            parts = _Parts(MAX_REFUSED_BYTES)
            await self._layer_request(
                "restore_layer", payload=piece, on_part=parts.append, guard=guard._asdict()
            )
            refused.update(json.loads(parts.joined()))
        return dict(refused)

    async def _layer_request(self, operation: str, **arguments: Any) -> None:
        await self._request(operation, timeout_s=LAYER_TIMEOUT_S, os_errors=True, **arguments)

    async def _file_request(
        self, operation: str, path: str, content: bytes = b"", **arguments: Any
    ) -> bytes:
        max_bytes = self._limits.file_mb << 20
        if len(content) > max_bytes:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        parts = _Parts(max_bytes)
        _, last = await self._request(
            operation,
            timeout_s=FILE_TIMEOUT_S,
            os_errors=True,
            payload=content,
            on_part=parts.append,
            path=path,
            **arguments,
        )
        return parts.joined() or last

    # --- requests, and the end ------------------------------------------------------------------

    async def listen(self, port: int) -> socket.socket:
        failed = f"port {port} cannot be opened inside"
        await self._request("listen", timeout_s=START_TIMEOUT_S, failed=failed, port=port)
        assert self._handover is not None
        return checked_listener(self._handover.take(fd_passing.LISTENER))

    async def _request(
        self,
        operation: str,
        *,
        timeout_s: float,
        os_errors: bool = False,
        margin_s: float = MARGIN_S,
        failed: str = "",
        retryable: bool = True,
        **others: Any,
    ) -> tuple[dict[str, Any], bytes]:
        """Requests an operation; `others` are those of `Channel.request`. The `SandboxError` of a
        refusal begins with `failed`, and is worth a retry if `retryable`; with `os_errors`, what
        the operating system said is raised as the matching `OSError`."""
        if self._channel is None:
            raise SandboxError("the sandbox was not started", retryable=False)
        try:
            return await self._channel.request(
                operation, timeout_s=timeout_s, margin_s=margin_s, **others
            )
        except RefusedInside as refusal:
            if os_errors and refusal.errno is not None:
                raise OSError(refusal.errno, refusal.message, others.get("path")) from None
            why = f"{failed or f'{operation} failed inside'}: {refusal.message}"
            raise SandboxError(why, retryable=retryable) from None

    async def stop(self) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        # The work outlives a cancelled caller: it holds what must be released.
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._child is not None:
            self._end(self._child)
        if self._starting is not None:
            if self._child is None:
                self._starting.cancel()
            await self._start_ended.wait()
        if self._channel is not None:
            await self._channel.close()
        self._close_descriptors()
        if self._child is not None:
            await _wait_for_end(self._child)
        if self._group is not None:
            await self._group.remove()
        await self.clean_up()

    def _close_descriptors(self) -> None:
        if self._shell is not None:
            self._shell.close()
        if self._handover is not None:
            self._handover.close()


def _begun(nonce: str | None) -> dict[str, Any]:
    return {} if nonce is None else {"nonce": nonce}


def _tool_result(result: dict[str, Any], output: bytes) -> ToolResult:
    match result:
        case {"is_error": bool(is_error), "data": dict(data)}:
            return ToolResult(output.decode("utf-8", "replace"), is_error, data)
    raise SandboxError(f"the sandbox broke its protocol: not the result of a tool: {result}")


async def _wait_for_end(child: Process) -> None:
    done, _ = await asyncio.wait([child.ended], timeout=STOP_TIMEOUT_S)
    if not done:
        child.kill()
        await child.ended
    child.close()


class _Parts:
    """A payload that comes in parts. Raises `SandboxError` when it is larger than agreed."""

    def __init__(self, max_bytes: int) -> None:
        self._parts: list[bytes] = []
        self._left = max_bytes

    def append(self, part: bytes) -> None:
        self._left -= len(part)
        if self._left < 0:
            raise SandboxError("the sandbox broke its protocol: a payload larger than agreed")
        self._parts.append(part)

    def joined(self) -> bytes:
        return b"".join(self._parts)
