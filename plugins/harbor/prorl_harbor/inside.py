"""A tool that runs commands, and moves directories as tars. Sent to the server in the sandbox as
source.

What a process writes leaves as parts: the number of the stream, then bytes, unchanged. Each stream
is bounded: its first half is sent while the process runs, the last half at its end. Processes left
in the background live on, and nobody reads what they write. Runs on the service's own Python.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import signal
import stat
import tarfile
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from prorl_service.sandbox.guest.execd.request import Request

READ_BYTES = 1 << 16
DRAINED_BYTES = 1 << 20
"""Bytes that are read after a process's end: more can only come from what it left running."""

STREAMS = (b"1", b"2")
CANNOT_RUN, NOT_FOUND, FAILED = 126, 127, 255
"""Exit codes of bash's own for the first two; `FAILED` is also above every errno that is used."""
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
IGNORED_BY_SERVER = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def tool(request: Request) -> None:
    OPERATIONS[request.arguments["operation"]](request)


def prepare(request: Request) -> None:
    """Makes directories before anything else has run; all users may write to the `open` ones."""
    for path in request.arguments["directories"]:
        os.makedirs(path, exist_ok=True)
    for path in request.arguments["open"]:
        os.makedirs(path, exist_ok=True)
        os.chmod(path, 0o777)
    request.reply_tool("", is_error=False)


def run(request: Request) -> None:
    """Runs `command` by bash in `cwd`, with `environment` over the sandbox's own."""
    _start(request, partial(_run, request))


def pack(request: Request) -> None:
    """Writes a tar of `path`, a `file` or `directory`; of what is too large for it only names."""
    _start(request, partial(_pack, request))


def unpack(request: Request) -> None:
    """Unpacks the tar `piece` into a directory, or its one file as `path`; removes the piece."""
    _start(request, partial(_unpack, request))


def append(request: Request) -> None:
    """Adds `piece` to the file `path`; removes the piece."""
    _start(request, partial(_append, request))


OPERATIONS = {"prepare": prepare, "run": run, "pack": pack, "unpack": unpack, "append": append}


# --- a process and its output -------------------------------------------------------------------


class Output:
    """One output of a process."""

    def __init__(self, request: Request, number: bytes, pipe: int) -> None:
        os.set_blocking(pipe, False)
        self._request = request
        self._number = number
        self._pipe = pipe
        self._head_left = self._half = request.arguments["output_bytes"] // 2
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._ended = False
        self.left_out = 0
        request.loop.watch(pipe, self._readable)

    def _readable(self) -> None:
        self.read()

    def read(self) -> int:
        """Returns how many bytes there were; 0 if there is nothing now or no more."""
        try:
            data = os.read(self._pipe, READ_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            self._request.loop.unwatch(self._pipe)
            os.close(self._pipe)
            self._pipe = -1
        elif not self._ended:
            self._take(data)
        return len(data)

    def _take(self, data: bytes) -> None:
        head, data = data[: self._head_left], data[self._head_left :]
        if head:
            self._head_left -= len(head)
            self._request.send_part(self._number + head)
        if data:
            self._tail.append(data)
            self._tail_bytes += len(data)
        while self._tail and self._tail_bytes - len(self._tail[0]) >= self._half:
            self.left_out += len(self._tail[0])
            self._tail_bytes -= len(self._tail.popleft())

    def end(self) -> None:
        """Sends the rest. What comes later is read and dropped, so that no writer has to wait."""
        drained = 0
        while self._pipe >= 0 and drained < DRAINED_BYTES and (read := self.read()):
            drained += read
        self._ended = True
        for data in self._tail:
            self._request.send_part(self._number + data)
        self._tail.clear()


def _start(request: Request, child: Callable[[], None]) -> None:
    """Answers with the exit code of a process of its own session in which `child` runs: 0, the
    errno of its `OSError`, or that of what it became."""
    pipes = os.pipe(), os.pipe()
    try:
        pid = os.fork()
    except OSError as error:  # the sandbox has no process left
        for pipe in pipes:
            os.close(pipe[0])
            os.close(pipe[1])
        request.send_part(b"2" + f"no process can be started: {error.strerror}\n".encode())
        data = {"exit_code": CANNOT_RUN, "timed_out": False, "left_out": [0, 0]}
        request.reply_tool("", is_error=False, data=data)
        return
    if pid == 0:
        _become(child, pipes[0][1], pipes[1][1])
    for pipe in pipes:
        os.close(pipe[1])
    outputs = [
        Output(request, number, pipe[0]) for number, pipe in zip(STREAMS, pipes, strict=True)
    ]
    _follow(request, pid, outputs)


def _follow(request: Request, pid: int, outputs: list[Output]) -> None:
    timed_out = False

    def kill() -> None:
        nonlocal timed_out
        timed_out = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # it may not lead its group yet
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)

    def ended(exit_code: int) -> None:
        request.loop.clear_timer(pid)
        for output in outputs:
            output.end()
        left_out = [output.left_out for output in outputs]
        data = {"exit_code": exit_code, "timed_out": timed_out, "left_out": left_out}
        request.reply_tool("", is_error=False, data=data)

    request.loop.on_exit(pid, ended)
    request.loop.set_timer(pid, request.deadline, kill)
    request.on_cancel(kill)


def _become(child: Callable[[], None], stdout: int, stderr: int) -> None:
    """Never returns. Its connection to the service is gone before `child` runs."""
    code = FAILED
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        null = os.open(os.devnull, os.O_RDWR)
        for target, source in enumerate((null, stdout, stderr)):
            os.dup2(source, target)
        for number in (signal.SIGCHLD, *IGNORED_BY_SERVER, *IGNORED_BY_PYTHON):
            signal.signal(number, signal.SIG_DFL)
        child()
        code = 0
    except _CannotRun as error:
        _say(str(error))
        code = error.exit_code
    except OSError as error:
        _say(f"{error.filename or 'error'}: {error.strerror or error}")
        code = error.errno or FAILED
    except BaseException as error:  # the boundary: the caller reads what went wrong
        _say(repr(error))
    finally:
        os._exit(code)


def _say(text: str) -> None:
    os.write(2, text.encode("utf-8", "replace") + b"\n")


class _CannotRun(Exception):
    def __init__(self, error: OSError, path: str) -> None:
        super().__init__(f"{path}: {error.strerror}")
        self.exit_code = NOT_FOUND if error.errno == errno.ENOENT else CANNOT_RUN


def _run(request: Request) -> None:
    arguments = request.arguments
    environment = {**os.environ, **arguments["environment"]}
    try:
        os.chdir(arguments["cwd"])
    except OSError as error:
        raise _CannotRun(error, arguments["cwd"]) from None
    try:
        os.execvpe("bash", ["bash", "-c", arguments["command"]], environment)
    except OSError as error:
        raise _CannotRun(error, "bash") from None


# --- directories --------------------------------------------------------------------------------


def _pack(request: Request) -> None:
    arguments = request.arguments
    path, is_file = arguments["path"], arguments["kind"] == "file"
    found = os.stat(path)
    if is_file is stat.S_ISDIR(found.st_mode):
        number = errno.EISDIR if is_file else errno.ENOTDIR
        raise OSError(number, os.strerror(number), path)
    room = arguments["max_bytes"]
    with open(1, "wb", READ_BYTES) as out, tarfile.open(fileobj=out, mode="w|") as tar:
        for entry, name in [(path, "file")] if is_file else _entries(path):
            try:
                room -= _add(tar, entry, name, room, follow=is_file)
            except OSError as error:  # what a model made may be anything, and hides nothing else
                _say(f"left out {entry}: {error.strerror}")


def _entries(top: str) -> Iterator[tuple[str, str]]:
    """Yields paths and names below `top`, directories before what is in them."""
    pending = [""]
    while pending:
        prefix = pending.pop()
        try:
            names = sorted(os.listdir(os.path.join(top, prefix)))
        except OSError as error:
            _say(f"left out {prefix}: {error.strerror}")
            continue
        for name in names:
            inner = os.path.join(prefix, name)
            path = os.path.join(top, inner)
            yield path, inner
            if os.path.isdir(path) and not os.path.islink(path):
                pending.append(inner)


def _add(tar: tarfile.TarFile, path: str, name: str, room: int, *, follow: bool) -> int:
    """Returns the bytes of content. Raises `OSError` for what cannot be added."""
    status = os.stat(path, follow_symlinks=follow)
    info = tarfile.TarInfo(name)
    info.mode, info.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
    if stat.S_ISDIR(status.st_mode):
        info.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(status.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, os.readlink(path)
    elif stat.S_ISREG(status.st_mode):
        return _add_file(tar, path, info, room, follow=follow)
    else:
        raise OSError(errno.EINVAL, "not a file, directory or link")
    tar.addfile(info)
    return 0


def _add_file(
    tar: tarfile.TarFile, path: str, info: tarfile.TarInfo, room: int, *, follow: bool
) -> int:
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    with open(os.open(path, flags), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a file")
        if status.st_size > room:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        info.size = status.st_size
        tar.addfile(info, _Padded(file))
    return info.size


class _Padded(io.RawIOBase):
    """Pads a file that shrinks while it is read to the length in its header."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        return self._file.read(size).ljust(size, b"\0")


def _taken(piece: str) -> BinaryIO:
    """Returns the content of an uploaded piece, whose path is gone."""
    file = open(piece, "rb")  # noqa: SIM115
    os.unlink(piece)
    return file


def _unpack(request: Request) -> None:
    path, as_file = request.arguments["path"], request.arguments["kind"] == "file"
    with (
        _taken(request.arguments["piece"]) as piece,
        tarfile.open(fileobj=piece, mode="r:") as tar,
    ):
        members = tar.getmembers()
        if as_file:
            path, members[0].name = os.path.split(_file_path(path, members[0].name))
        os.makedirs(path, exist_ok=True)
        for member in members:
            _make_way(os.path.join(path, member.name), member.isdir())
        tar.extractall(path, members, filter="fully_trusted")


def _append(request: Request) -> None:
    path = request.arguments["path"]
    if request.arguments["kind"] == "file":
        path = _file_path(path, request.arguments["name"])
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
    with _taken(request.arguments["piece"]) as piece, open(os.open(path, flags), "ab") as file:
        shutil.copyfileobj(piece, file, 1 << 20)


def _file_path(path: str, name: str) -> str:
    """Returns where a file goes: into `path` if that is a directory, otherwise there."""
    return os.path.join(path, name) if path.endswith("/") or os.path.isdir(path) else path


def _make_way(path: str, for_directory: bool) -> None:
    """Removes what is in the way, which a model may have made: writing to it could block."""
    is_directory = os.path.isdir(path)
    if is_directory and (for_directory or not os.path.islink(path)):
        return
    if os.path.lexists(path):
        os.unlink(path)
