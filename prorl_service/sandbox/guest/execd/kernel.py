"""The two processes of one IPython kernel: the kernel itself, and the client that talks with it.

All text that the kernel and its children print comes through one pipe, hence in order; the client
reports the results of requests and their images. When either process ends, so does the other.
Queues, time-outs, truncation and restarts are up to `ipython`.
"""

import contextlib
import json
import os
import signal
from functools import partial
from typing import Any, Protocol

from .loop import Loop, PipeWriter
from .protocol import FrameDecoder, ProtocolError, encode
from .shell import RESTORED_SIGNALS

PROGRAMS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "jupyter")
OPTIONS_VARIABLE = "PRORL_KERNEL"

_CHANNELS = ("shell", "iopub", "stdin", "control", "hb")
_READ_BYTES = 65536
_MAX_LAST_READS = 256

MAX_IMAGES = 16
MAX_IMAGE_CHARS = 4 << 20
"""Maximum total length, in base64, of the images of one reply."""

READ, WRITE = 0, 1


class KernelUser(Protocol):
    def append(self, data: bytes) -> None:
        """Gets output."""

    def replied(self, reply: dict[str, Any]) -> None:
        """Gets `status`, `execution_count` and `images` of a request."""

    def kernel_exited(self, code: int) -> None: ...


class Kernel:
    def __init__(self, loop: Loop, user: KernelUser, *, python: list[str], packages: str) -> None:
        """Starts it in the working directory of this process; `run` may be called immediately.

        `python` starts the service's own Python, and `packages` is the directory of what a kernel
        on it needs. Raises `OSError`.
        """
        self._loop = loop
        self._user = user
        self._exit_code = 0
        self._decoder = FrameDecoder(max_payload_bytes=0)
        self._output, output = _pipe(ours=READ)
        requests, self._requests = _pipe(ours=WRITE)
        self._replies, replies = _pipe(ours=READ)
        self._send = PipeWriter(loop, self._requests).write
        theirs = [output, requests, replies]
        try:
            options = _options(python, packages)
            self._kernel, ready = _spawn_kernel(options, output)
            theirs.append(ready)
            self._client = _spawn_client(options, requests, replies, output, ready)
        except BaseException:
            self._close()
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        self._alive = {self._kernel, self._client}
        loop.watch(self._output, self._output_came)
        loop.watch(self._replies, self._read_replies)
        for pid in self._alive:
            loop.on_exit(pid, partial(self._exited, pid))

    @property
    def is_ending(self) -> bool:
        """True once either process has ended: `kernel_exited` will be called soon."""
        return len(self._alive) < 2

    def run(self, code: str) -> None:
        """Starts `code`; `replied` or `kernel_exited` will be called."""
        self._send(encode({}, code.encode("utf-8", "backslashreplace")))

    def interrupt(self) -> None:
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        """Kills both processes, and what the kernel started, unless that left its process group."""
        self._signal(signal.SIGKILL)
        if self._client in self._alive:
            os.kill(self._client, signal.SIGKILL)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._kernel, number)

    def _output_came(self) -> None:
        if not self._read_output():
            self._loop.unwatch(self._output)

    def _read_output(self) -> bytes:
        data = os.read(self._output, _READ_BYTES)
        if data:
            self._user.append(data)
        return data

    def _read_replies(self) -> None:
        data = os.read(self._replies, _READ_BYTES)
        if not data:
            self._loop.unwatch(self._replies)
        try:
            for reply, _ in self._decoder.feed(data):
                check(reply)
                self._read_output_so_far()  # what was printed before the reply
                self._user.replied(reply)
        except ProtocolError:
            self.kill()

    def _read_output_so_far(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(_MAX_LAST_READS):  # another process may write forever
                if not self._read_output():
                    return

    def _exited(self, pid: int, code: int) -> None:
        self._alive.remove(pid)
        if pid == self._kernel:
            self._exit_code = code
        self.kill()
        if not self._alive:
            self._read_output_so_far()
            self._close()
            self._user.kernel_exited(self._exit_code)

    def _close(self) -> None:
        for fd in (self._output, self._requests, self._replies):
            self._loop.unwatch(fd)
            os.close(fd)


def check(reply: dict[str, Any]) -> None:
    """Raises `ProtocolError` for an invalid reply: it comes from where the user's code runs."""
    images = reply.get("images")
    if (
        not isinstance(reply.get("status"), str)
        or not isinstance(reply.get("execution_count"), (int, type(None)))
        or not isinstance(images, list)
        or len(images) > MAX_IMAGES
        or not all(map(_is_image, images))
        or sum(len(image["base64"]) for image in images) > MAX_IMAGE_CHARS
    ):
        raise ProtocolError("not a reply of a kernel")


def _is_image(image: Any) -> bool:
    return (
        isinstance(image, dict)
        and image.keys() == {"mime", "base64"}
        and all(isinstance(value, str) for value in image.values())
    )


def _pipe(ours: int) -> tuple[int, int]:
    """Makes a pipe whose end `ours`, `READ` or `WRITE`, never blocks."""
    ends = os.pipe()
    os.set_blocking(ends[ours], False)
    return ends


def _options(python: list[str], packages: str) -> dict[str, Any]:
    """Uses abstract sockets: only this network namespace sees them; short, gone with the kernel."""
    return {
        "connection": {
            "transport": "ipc",
            "ip": f"@prorl-{os.urandom(16).hex()}",
            **{f"{channel}_port": number for number, channel in enumerate(_CHANNELS, 1)},
        },
        "key": os.urandom(32).hex(),
        "packages": packages,
        "python": python,
        "max_images": MAX_IMAGES,
        "max_image_chars": MAX_IMAGE_CHARS,
    }


def _spawn_kernel(options: dict[str, Any], output: int) -> tuple[int, int]:
    """Returns the kernel's process id, and a descriptor that gives a byte when it is ready."""
    ready, is_ready = os.pipe()
    os.set_inheritable(is_ready, True)
    options = {**options, "is_ready": is_ready}
    python = options["python"]
    if any(os.access(os.path.join(path, "python3"), os.X_OK) for path in os.get_exec_path()):
        python = ["python3"]
    else:
        options["python"] = None
    try:
        return _spawn(python, "launch.py", options, {1: output, 2: output}), ready
    except BaseException:
        os.close(ready)
        raise
    finally:
        os.close(is_ready)


def _spawn_client(
    options: dict[str, Any], requests: int, replies: int, errors: int, ready: int
) -> int:
    os.set_inheritable(ready, True)
    options = {**options, "ready": ready}
    python = [*options["python"], "-I", "-S"]
    return _spawn(python, "client.py", options, {0: requests, 1: replies, 2: errors})


def _spawn(
    python: list[str], program: str, options: dict[str, Any], descriptors: dict[int, int]
) -> int:
    """Starts a program in its own session. Its standard input is empty: ours is the connection."""
    given = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in descriptors.items()]
    argv = [*python, os.path.join(PROGRAMS, program)]
    return os.posix_spawnp(
        argv[0],
        argv,
        {**os.environ, OPTIONS_VARIABLE: json.dumps(options)},
        file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), *given],
        setsid=True,
        setsigdef=RESTORED_SIGNALS,
    )
