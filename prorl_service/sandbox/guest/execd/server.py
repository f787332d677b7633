"""The server itself: hands requests from standard input's socket to operations and tools.

An operation is a function of one `Request` that answers it, immediately or later; it must not
block. A tool is an operation that a model may call by name. A new one is an entry in a table, or
source sent in `add_tool`.
"""

import gc
import os
import select
import signal
import socket
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from .bash import BashTool
from .editor import Editor
from .ending import end_processes, resume_processes, suspend_processes
from .fd_passing import LISTENER, receive, send_fds
from .files import download, upload
from .ipython import IPythonTool
from .layer import restore_layer, save_layer
from .limits import confine, kill_all_and_exit
from .loop import Loop
from .memory import MemoryGuard
from .namespaces import Written
from .protocol import FrameDecoder, encode
from .request import Request
from .tar import restore, snapshot

Operation = Callable[[Request], None]

CONNECTION = 0
IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
TAR_BYTES = 1 << 16
"""Room for what surrounds a file of the largest size in a tar."""
BACKLOG = 128
_READ_BYTES = 1 << 16  # more would be mapped and unmapped for each read


def serve(
    *,
    workdir: str,
    rlimits: dict[str, int],
    memory_bytes: int | None,
    output_bytes: int,
    file_bytes: int,
    kernel: dict[str, Any] | None,
    written: Sequence[Written] = (),
) -> None:
    """Serves until the connection ends."""
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    confine(workdir=workdir, rlimits=rlimits)
    handover = receive(CONNECTION)
    # The first request comes once this process is in its control group, which children inherit.
    select.select([CONNECTION], [], [])
    loop = Loop()
    bash = BashTool(loop, handover, output_bytes=output_bytes)
    tools: dict[str, Operation] = {
        "bash": bash,
        "str_replace_editor": Editor(output_bytes=output_bytes),
        "ipython": IPythonTool(loop, kernel=kernel, output_bytes=output_bytes),
    }
    operations: dict[str, Operation] = {
        "ping": lambda request: request.reply(),
        "upload": upload,
        "download": partial(download, max_bytes=file_bytes),
        "snapshot": partial(snapshot, max_bytes=file_bytes),
        "restore": restore,
        "end_processes": end_processes,
        "suspend_processes": suspend_processes,
        "resume_processes": resume_processes,
        "save_layer": partial(save_layer, written),
        "restore_layer": partial(restore_layer, written),
        "tool": partial(call_tool, tools, MemoryGuard(loop, memory_bytes)),
        "return_shell": bash.return_shell,
        "listen": partial(listen, handover),
        "add_tool": partial(add_tool, tools, frozenset(tools)),
    }
    connection = HostConnection(loop, operations, FrameDecoder(file_bytes + TAR_BYTES))
    loop.watch(CONNECTION, connection.read)
    gc.collect()
    gc.freeze()  # what is loaded now stays: collections need not look at it
    loop.run()


def call_tool(tools: dict[str, Operation], guard: MemoryGuard, request: Request) -> None:
    guard.watch()
    name = request.arguments["name"]
    request.arguments = request.arguments["arguments"]
    if name in tools:
        tools[name](request)
    else:
        known = ", ".join(sorted(tools))
        request.reply_tool(f"there is no tool {name!r} here, only: {known}", is_error=True)


def add_tool(tools: dict[str, Operation], own: frozenset[str], request: Request) -> None:
    """Adds the function `tool` of the source in the payload. The service vouches for it."""
    name = request.arguments["name"]
    if name in own:
        raise ValueError(f"{name!r} is a tool of the server itself")
    module: dict[str, Any] = {"__name__": f"tool_{name}"}
    exec(compile(request.payload, f"<tool {name}>", "exec"), module)
    tools[name] = module["tool"]
    request.reply()


def listen(handover: socket.socket | None, request: Request) -> None:
    """Opens a port on the loopback inside, hands its socket to the service, and answers with the
    port; `port` 0 takes a free one. The port lives as long as the service keeps the socket."""
    if handover is None:
        request.fail("this server passes no descriptors")
        return
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", request.arguments["port"]))
        listener.listen(BACKLOG)
        listener.setblocking(False)
        send_fds(handover, [listener.fileno()], LISTENER)
        request.reply(port=listener.getsockname()[1])


class HostConnection:
    def __init__(self, loop: Loop, operations: dict[str, Operation], decoder: FrameDecoder) -> None:
        self._loop = loop
        self._operations = operations
        self._decoder = decoder
        self._requests: dict[int, Request] = {}

    def read(self) -> None:
        try:
            data = os.read(CONNECTION, _READ_BYTES)
        except ConnectionResetError:
            data = b""
        if not data:
            kill_all_and_exit()
        for header, payload in self._decoder.feed(data):
            if header["op"] != "cancel":
                self._perform(header, payload)
            elif header["id"] in self._requests:
                self._requests[header["id"]].cancel()

    def _perform(self, header: dict[str, Any], payload: bytes) -> None:
        request = self._requests[header["id"]] = Request(header, payload, self._answer, self._loop)
        try:
            self._operations[request.operation](request)
        except OSError as error:
            request.fail(error.strerror or str(error), error.errno)
        except Exception:  # the boundary: a bug in one operation is that call's failure alone
            request.fail(traceback.format_exc())

    def _answer(self, header: dict[str, Any], payload: bytes) -> None:
        if "part" not in header:
            del self._requests[header["id"]]
        data = encode(header, payload)
        try:
            written = os.write(CONNECTION, data)
            while written < len(data):
                written += os.write(CONNECTION, memoryview(data)[written:])
        except (BrokenPipeError, ConnectionResetError):
            kill_all_and_exit()
