"""The server itself: requests from standard input's socket, handed to operations and tools.

An operation is a function of one `Call` that answers it, at once or later; it must not block. A
tool is an operation a model may call by name. To add one is to add an entry to a table.
"""

from __future__ import annotations

import json
import os
import signal
from functools import partial

from .bash import BashTool
from .call import Call
from .confine import confine, kill_all_and_exit
from .files import download, upload
from .loop import Loop
from .protocol import FrameDecoder, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Operation = Callable[[Call], None]

CONNECTION = 0
IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_READ_BYTES = 1 << 18


def main(config: str) -> None:
    """Serve until the connection ends. `config` is JSON: the arguments of `serve`."""
    serve(**json.loads(config))


def serve(
    *, workdir: str, user: int | None, rlimits: dict[str, int], output_bytes: int, file_bytes: int
) -> None:
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    confine(workdir=workdir, user=user, rlimits=rlimits)
    loop = Loop()
    tools: dict[str, Operation] = {"bash": BashTool(loop, output_bytes=output_bytes)}
    operations: dict[str, Operation] = {
        "ping": lambda call: call.reply(),
        "upload": upload,
        "download": partial(download, max_bytes=file_bytes),
        "tool": partial(call_tool, tools),
    }
    connection = Connection(operations, FrameDecoder(file_bytes))
    loop.watch(CONNECTION, connection.read)
    loop.run()


def call_tool(tools: dict[str, Operation], call: Call) -> None:
    name = call.arguments["name"]
    call.arguments = call.arguments["arguments"]
    if name in tools:
        tools[name](call)
    else:
        known = ", ".join(sorted(tools))
        call.reply_tool(f"there is no tool {name!r} here, only: {known}", is_error=True)


class Connection:
    def __init__(self, operations: dict[str, Operation], decoder: FrameDecoder) -> None:
        self._operations = operations
        self._decoder = decoder

    def read(self) -> None:
        try:
            data = os.read(CONNECTION, _READ_BYTES)
        except ConnectionResetError:
            data = b""
        if not data:
            kill_all_and_exit()
        for header, payload in self._decoder.feed(data):
            self._perform(Call(header, payload, self._answer))

    def _perform(self, call: Call) -> None:
        try:
            self._operations[call.operation](call)
        except OSError as error:
            call.fail(error.strerror or str(error), error.errno)
        except Exception:  # the boundary: a bug in one operation is that call's failure alone
            import traceback  # slow to import

            call.fail(traceback.format_exc())

    def _answer(self, header: dict[str, Any], payload: bytes) -> None:
        data = memoryview(encode(header, payload))
        try:
            while data:
                data = data[os.write(CONNECTION, data) :]
        except (BrokenPipeError, ConnectionResetError):
            kill_all_and_exit()
