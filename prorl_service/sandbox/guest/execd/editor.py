"""The str_replace_editor tool: views, makes and edits text files without a shell.

Commands, messages and line numbers are those that models know from the editor of this name. Files
are bytes here: line ends, a missing last one, tabs, mode, owner, links and bytes that are not UTF-8
stay as they are. A file is written in place, so another reader may see it half written; if the disk
is full, it keeps its old content. Calls block the server, hence the limits on size. The editor
works in process 1 of the sandbox, so files of the kernel are refused.
"""

import os
from collections.abc import Iterator
from itertools import islice
from typing import Any

from . import text
from .files import checked_path, open_stored, refuse_kernels
from .request import Request
from .text import Problem

MAX_FILE_BYTES = 4 << 20
MAX_OUTPUT_CHARS = 16_000
HISTORY_BYTES = 32 << 20
MAX_HISTORY = 1000
MAX_LISTED = 1000

CLIPPED = (
    "<response clipped><NOTE>Only the first part is shown. Find line numbers with `grep -n` and"
    " view them with `view_range`.</NOTE>"
)


class Editor:
    def __init__(self, *, output_bytes: int) -> None:
        # A character may take four bytes.
        self._max_chars = min(MAX_OUTPUT_CHARS, output_bytes // 4)
        self._history: list[_Edit] = []
        self._commands = {
            "view": self._view,
            "create": self._create,
            "str_replace": self._str_replace,
            "insert": self._insert,
            "undo_edit": self._undo_edit,
        }

    def __call__(self, request: Request) -> None:
        try:
            output, is_error = self._perform(request.arguments), False
        except Problem as problem:
            output, is_error = str(problem), True
        except OSError as error:
            output, is_error = f"{request.arguments['path']}: {error.strerror or error}", True
        truncated = len(output) > self._max_chars
        if truncated:
            output = output[: self._max_chars] + CLIPPED
        request.reply_tool(output, is_error=is_error, data={"truncated": truncated})

    def _perform(self, arguments: dict[str, Any]) -> str:
        command = arguments.get("command")
        if not isinstance(command, str) or command not in self._commands:
            known = ", ".join(self._commands)
            raise Problem(f"Unrecognized command {command!r}. Allowed commands are: {known}.")
        path = _text(arguments, "path")
        if not os.path.isabs(path):
            absolute = os.path.abspath(path)
            raise Problem(
                f"The path {path} is not an absolute path, it should start with `/`."
                f" Maybe you meant {absolute}?"
            )
        return self._commands[command](checked_path(path), arguments)

    def _view(self, path: str, arguments: dict[str, Any]) -> str:
        view_range = arguments.get("view_range")
        if os.path.isdir(path):
            if view_range is not None:
                raise Problem("`view_range` is not allowed when `path` points to a directory.")
            refuse_kernels(os.stat(path))
            listed = "\n".join(islice(_listing(path), MAX_LISTED))
            return (
                f"Here's the files and directories up to 2 levels deep in {path},"
                f" excluding hidden items:\n{listed}\n"
            )
        lines = text.lines_of(_read(path))
        first, last, note = text.checked_range(view_range, len(lines))
        return text.numbered(path, lines, first, last) + note

    def _create(self, path: str, arguments: dict[str, Any]) -> str:
        content = _encoded(arguments, "file_text")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            fd = open_stored(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            raise Problem(
                f"File already exists at: {path}. Cannot overwrite files with `create`."
            ) from None
        with open(fd, "wb", 0) as file:
            try:
                _write_all(file.fileno(), content)
            except OSError:
                os.unlink(path)
                raise
        self._remember(path, None, content)
        return f"File created successfully at: {path}"

    def _str_replace(self, path: str, arguments: dict[str, Any]) -> str:
        old, new = _encoded(arguments, "old_str"), _encoded(arguments, "new_str", "")
        before = _read(path)
        after, first, last = text.replace(path, before, old, new)
        self._edit(path, before, after)
        return self._edited(path, after, first, last)

    def _insert(self, path: str, arguments: dict[str, Any]) -> str:
        new = _encoded(arguments, "new_str")
        line: Any = arguments.get("insert_line")
        before = _read(path)
        after = text.insert(before, line, new)
        self._edit(path, before, after)
        return self._edited(path, after, line + 1, line + 1 + new.count(b"\n"))

    def _undo_edit(self, path: str, arguments: dict[str, Any]) -> str:
        edit = next((edit for edit in reversed(self._history) if edit.path == path), None)
        if edit is None:
            raise Problem(f"No edit history found for {path}.")
        if _read(path) != edit.after:
            raise Problem(f"{path} was changed since by something else: its last edit stays.")
        if edit.before is None:
            os.unlink(path)
            done = f"Last edit to {path} undone successfully: it was its creation."
        else:
            _overwrite(path, edit.after, edit.before)
            lines = text.lines_of(edit.before)
            shown = text.numbered(path, lines, 1, len(lines))
            done = f"Last edit to {path} undone successfully. {shown}"
        self._history.remove(edit)
        return done

    def _edit(self, path: str, before: bytes, after: bytes) -> None:
        if len(after) > MAX_FILE_BYTES:
            raise Problem(_too_large(path))
        _overwrite(path, before, after)
        self._remember(path, before, after)

    def _edited(self, path: str, content: bytes, first: int, last: int) -> str:
        """Returns the answer to an edit; lines `first` to `last` are new."""
        lines = text.lines_of(content)
        first, last = max(1, first - text.CONTEXT), min(len(lines), last + text.CONTEXT)
        snippet = text.numbered(f"a snippet of {path}", lines, first, last)
        return (
            f"The file {path} has been edited. {snippet}Review the changes and make sure they are"
            " as expected. Edit the file again if necessary."
        )

    def _remember(self, path: str, before: bytes | None, after: bytes) -> None:
        self._history.append(_Edit(path, before, after))
        while len(self._history) > MAX_HISTORY or sum(map(len, self._history)) > HISTORY_BYTES:
            del self._history[0]


class _Edit:
    def __init__(self, path: str, before: bytes | None, after: bytes) -> None:
        self.path = path
        self.before = before
        """Content before the edit; None if there was no file."""
        self.after = after

    def __len__(self) -> int:
        return len(self.before or b"") + len(self.after)


def _text(arguments: dict[str, Any], name: str, default: str | None = None) -> str:
    value = arguments.get(name)
    value = default if value is None else value
    if value is None:
        command = arguments["command"]
        raise Problem(f"Parameter `{name}` is required for command: {command}.")
    if not isinstance(value, str) or "\0" in value:
        raise Problem(f"Parameter `{name}` must be text without NUL.")
    return value


def _encoded(arguments: dict[str, Any], name: str, default: str | None = None) -> bytes:
    return _text(arguments, name, default).encode("utf-8", "replace")


def _read(path: str) -> bytes:
    if os.path.isdir(path):
        raise Problem(f"{path} is a directory: only `view` can be used on directories.")
    with open(open_stored(path, os.O_RDONLY), "rb", 0) as file:
        content = bytearray()
        while len(content) <= MAX_FILE_BYTES:
            data = file.read(MAX_FILE_BYTES)
            if not data:
                break
            content += data
    if len(content) > MAX_FILE_BYTES:
        raise Problem(_too_large(path))
    if b"\0" in content:
        raise Problem(f"{path} is a binary file: this tool is for text.")
    return bytes(content)


def _too_large(path: str) -> str:
    return f"{path} is too large for this tool: more than {MAX_FILE_BYTES >> 20} MB. Use bash."


def _overwrite(path: str, before: bytes, after: bytes) -> None:
    fd = open_stored(path, os.O_WRONLY)
    try:
        try:
            _write_all(fd, after)
        except OSError:
            _write_all(fd, before)  # it fitted before
            os.ftruncate(fd, len(before))
            raise
        os.ftruncate(fd, len(after))
    finally:
        os.close(fd)


def _write_all(fd: int, content: bytes) -> None:
    written = 0
    while written < len(content):
        written += os.pwrite(fd, content[written:], written)


def _listing(path: str) -> Iterator[str]:
    root = path.rstrip("/") + "/"
    yield root
    for entry in _entries(root):
        is_directory = entry.is_dir(follow_symlinks=False)
        yield entry.path + "/" * is_directory
        if is_directory:
            try:
                below = _entries(entry.path)
            except OSError as error:
                yield f"{entry.path}/: {error.strerror}"
                continue
            for inner in below:
                yield inner.path + "/" * inner.is_dir(follow_symlinks=False)


def _entries(path: str) -> list[os.DirEntry[str]]:
    with os.scandir(path) as entries:
        seen = (entry for entry in entries if not entry.name.startswith("."))
        return sorted(islice(seen, MAX_LISTED), key=lambda entry: entry.name)
