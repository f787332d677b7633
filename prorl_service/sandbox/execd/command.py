"""One command of a bash: the script that runs it, the mark that tells its end, words of its result.

For both ends of the connection: whichever of the two reads the terminal while the command runs.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_COMMAND = b"\\builtin eval '%s' </dev/null\n"
# The empty line ends what a syntax error in the command may have left open in the parser. errexit
# is for one command: kept on, the next failing command would take the shell down. Prompts are
# emptied because activation scripts set them. `2>/dev/null` hides this line from `set -x`, and the
# backslash keeps aliases out.
_END = (
    b"\n"
    b"{ \\builtin printf '\\036%s %%d\\036' \"$?\" >/dev/tty;"
    b" PS1= PS2= PROMPT_COMMAND=; \\builtin set +e; } 2>/dev/null\n"
)
_NONCE_BYTES = 12
_MAX_CODE_BYTES = 8

END_BYTES = len(_END % (b"x" * 2 * _NONCE_BYTES))
"""Of the script; while the command runs bash has not read them."""


def new_nonce() -> str:
    return os.urandom(_NONCE_BYTES).hex()


def script(command: str, nonce: str) -> bytes:
    """What bash is to read. `command` has no NUL."""
    quoted = command.encode("utf-8", "replace").replace(b"'", b"'\\''")
    return _COMMAND % quoted + _END % nonce.encode()


class EndMark:
    """Finds the end of a command in what its terminal says, which comes in pieces."""

    def __init__(self, nonce: str) -> None:
        self._mark = b"\x1e%s " % nonce.encode()
        self.held = b""
        """What may be the beginning of the mark."""

    def feed(self, data: bytes) -> tuple[bytes, int | None, bytes]:
        """Output, the exit code if here is the end, and what came after the end."""
        data = self.held + data
        self.held = b""
        start = data.find(self._mark)
        if start < 0:
            return self._hold_start_of_mark(data), None, b""
        code, ended, rest = data[start + len(self._mark) :].partition(b"\x1e")
        if len(code) <= _MAX_CODE_BYTES:
            if not ended:
                self.held = data[start:]
                return data[:start], None, b""
            if code.isdigit():
                return data[:start], int(code), rest
        return data, None, b""  # a forgery: the command found its own nonce

    def _hold_start_of_mark(self, data: bytes) -> bytes:
        start = data.rfind(b"\x1e")
        if start < 0 or not self._mark.startswith(data[start:]):
            return data
        self.held = data[start:]
        return data[:start]


def with_notes(text: str, notes: Sequence[str]) -> str:
    """The output, and a line for each thing the model should know that is not in it."""
    lines = [f"[{note}]" for note in notes]
    if lines and text:
        lines.insert(0, text.rstrip("\n"))
    return "\n".join(lines) if lines else text


def exit_notes(exit_code: int | None) -> list[str]:
    return [f"exit code {exit_code}"] if exit_code else []


def result_data(
    exit_code: int | None = None,
    *,
    timed_out: bool = False,
    truncated: bool = False,
    restarted: bool = False,
) -> dict[str, Any]:
    return {
        "exit_code": exit_code,
        "timed_out": timed_out,
        "truncated": truncated,
        "restarted": restarted,
    }
