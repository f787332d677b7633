"""Starts IPython's kernel: on the image's Python, or else on the service's own.

Text bypasses Jupyter (with its buffers, a queue that drops, and one JSON message each): standard
output and error stay one pipe to the execution server, and results, displays and tracebacks are
printed to it too. So all text is in order, also that of subprocesses; a fast writer has to wait;
and what was printed before a crash is kept. Images go back with the reply of the request that
made them.

Only this file of this package and `execd` may run on an image's Python. It needs 3.7 or newer, as
ipykernel 6 does (a test reads it as 3.7); an older one ends with a syntax error. `execd.kernel`
starts it and defines its options, which are JSON in a variable.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
import signal
import sys
import tempfile
from importlib.util import find_spec
from shutil import which
from typing import Any, NoReturn

IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
TRACEBACK_HEAD, TRACEBACK_TAIL = 40, 60
"""First and last lines of a long traceback that are shown."""
OPTIONS_VARIABLE = "PRORL_KERNEL"
OPTIONS = json.loads(os.environ.pop(OPTIONS_VARIABLE))
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def run_on_own_python() -> NoReturn:
    python = OPTIONS["python"]
    variables = {**os.environ, OPTIONS_VARIABLE: json.dumps({**OPTIONS, "python": None})}
    os.execve(python[0], [*python, os.path.abspath(__file__)], variables)


# Users import from where they work, not from here.
sys.path[0] = ""
is_own = OPTIONS["python"] is None
if is_own:
    sys.path.insert(1, OPTIONS["packages"])
    # What users start with it needs the image's packages, and this one may need its loader.
    sys.executable = which("python3") or sys.executable
    if find_spec("matplotlib") is None:
        # The image's programs may have it, but not the backend that the kernel would set for them.
        os.environ.setdefault("MPLBACKEND", "agg")

# For debuggers and completion: not needed, and a third of the time to start.
UNWANTED = ("debugpy", "jedi")
sys.modules.update(dict.fromkeys(UNWANTED))  # type: ignore[arg-type]
try:
    from ipykernel._version import version_info
    from ipykernel.kernelapp import IPKernelApp
    from jupyter_client.session import Session
    from tornado.ioloop import IOLoop

    if version_info < (6,):
        raise ImportError(f"ipykernel is too old: {version_info}")
except ImportError:
    if is_own:
        raise
    run_on_own_python()


class Images:
    """Images displayed since the last reply, as base64 by display id."""

    def __init__(self) -> None:
        self._images: dict[Any, dict[str, str]] = {}
        self._clear_at_next = False

    def add(self, key: str | None, mime: str, data: str) -> str:
        """Adds an image. Returns a note if it is dropped instead, else nothing."""
        if self._clear_at_next:
            self.clear(wait=False)
        known = dict(self._images)
        known[key or len(known)] = {"mime": mime, "base64": data}
        if len(known) > OPTIONS["max_images"]:
            return f"[{mime} dropped: at most {OPTIONS['max_images']} images a call]\n"
        if sum(len(image["base64"]) for image in known.values()) > OPTIONS["max_image_chars"]:
            return f"[{mime} dropped: larger than a call may give]\n"
        self._images = known
        return ""

    def clear(self, wait: bool) -> None:
        self._clear_at_next = wait
        if not wait:
            self._images = {}

    def take(self) -> list[dict[str, str]]:
        images = list(self._images.values())
        self.clear(wait=False)
        return images


class Text(io.TextIOWrapper):
    """Standard output or error that only the end of the process closes."""

    def __init__(self) -> None:
        output = open(os.dup(1), "wb")  # noqa: SIM115
        super().__init__(output, "utf-8", "backslashreplace", line_buffering=True)

    def close(self) -> None:
        self.flush()


def mend_streams() -> None:
    """Replaces broken streams: the kernel flushes them before it replies, and must reply."""
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except (AttributeError, ValueError, OSError):
            setattr(sys, name, Text())


class KernelSession(Session):
    """Prints what an ordinary session publishes. Sends only replies."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._images = Images()
        self._text = sys.stdout

    def send(
        self, stream: Any, msg_or_type: Any, content: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        if not isinstance(msg_or_type, str):
            content = msg_or_type["content"]
            kind = msg_or_type["header"]["msg_type"]
        else:
            kind = msg_or_type
        if kind == "execute_reply":
            content = self._reply(content)
        elif not kind.endswith("_reply"):
            self._publish(kind, content)
            return None
        return super().send(stream, msg_or_type, content, *args, **kwargs)

    def _publish(self, kind: str, content: dict[str, Any]) -> None:
        if kind in ("execute_result", "display_data", "update_display_data"):
            self._display(content)
        elif kind == "error":
            self._print(_ends("\n".join(content["traceback"])))
        elif kind == "clear_output":
            self._images.clear(content["wait"])

    def _display(self, content: dict[str, Any]) -> None:
        data = content["data"]
        if data.get("text/plain"):
            self._print(data["text/plain"])
        for mime in IMAGE_TYPES:
            if mime in data:
                key = content.get("transient", {}).get("display_id")
                self._text.write(self._images.add(key, mime, _base64(data[mime])))

    def _print(self, text: str) -> None:
        self._text.write(_ANSI.sub("", text) + "\n")

    def _reply(self, content: dict[str, Any]) -> dict[str, Any]:
        for payload in content.get("payload", ()):
            if payload["source"] == "page":
                self._print(payload["data"]["text/plain"])
        self._text.flush()
        return {
            "status": content["status"],
            "execution_count": content.get("execution_count"),
            "images": self._images.take(),
        }


def _ends(traceback: str) -> str:
    """Returns a traceback's first and last lines: an endless recursion has thousands."""
    lines = traceback.splitlines()
    left_out = len(lines) - TRACEBACK_HEAD - TRACEBACK_TAIL
    if left_out <= 0:
        return traceback
    note = f"[... {left_out} lines of the traceback are left out ...]"
    return "\n".join([*lines[:TRACEBACK_HEAD], note, *lines[-TRACEBACK_TAIL:]])


def _base64(data: str | bytes) -> str:
    return base64.b64encode(data).decode() if isinstance(data, bytes) else "".join(data.split())


class KernelApp(IPKernelApp):
    """A kernel that knows its connection, and needs no file for it."""

    def init_connection_file(self) -> None:
        pass

    def write_connection_file(self, **_: Any) -> None:
        pass

    def log_connection_info(self) -> None:
        pass


def main() -> None:
    sys.stdout, sys.stderr = Text(), Text()
    session = KernelSession(key=OPTIONS["key"].encode())
    app: Any = KernelApp.instance(
        **OPTIONS["connection"], session=session, outstream_class=None, log_level=50
    )
    app.config.HistoryManager.enabled = False
    with tempfile.TemporaryDirectory() as directory:  # not to litter the user's home
        os.environ["IPYTHONDIR"] = directory
        app.initialize([])
        del os.environ["IPYTHONDIR"]
    for name in UNWANTED:
        del sys.modules[name]
    app.kernel._execute_sleep = 0  # it waits for output that does not come this way
    app.shell.system = app.shell.system_raw  # no terminal between a command and our pipe
    app.shell.ask_exit = lambda: None  # would end the kernel a little later, in the next request
    app.shell.events.register("post_execute", mend_streams)
    # Without a handler, asyncio would continue to sleep after an interrupt: `await` would not end.
    loop: Any = IOLoop.current()
    loop.asyncio_loop.add_signal_handler(signal.SIGURG, lambda: None)
    os.write(OPTIONS["is_ready"], b"1")
    os.close(OPTIONS["is_ready"])
    app.start()


main()
