"""One bash command: the script that runs it, the mark at its end, the notes and data of its result.

Both ends of the connection use this: either may read the terminal while the command runs.
"""

import os
import re
from typing import Any

_COMMAND = b"\\builtin eval '%s' </dev/null\n"
# The empty line ends what a syntax error in the command may have left open in the parser. errexit
# is for one command: kept on, the next failing command would take the shell down. Prompts are
# emptied because activation scripts set them. `2>/dev/null` hides this line from `set -x`, and the
# backslash keeps aliases out. The line is short because bash reads its commands byte by byte.
_END = (
    b"\n"
    b"{ \\builtin printf '\\036%s %%d\\036' \"$?\" >/dev/tty;"
    b"PS1= PS2= PROMPT_COMMAND=;\\builtin set +e;} 2>/dev/null\n"
)
# A letter marks a standard output that is not a terminal: a tenth of the time of a short command.
_END_WITH_CHECK = (
    b"\n"
    b"{ _p=$?;[[ -t 1 ]]||_p+=m;\\builtin printf '\\036%s %%s\\036' \"$_p\" >/dev/tty;"
    b"PS1= PS2= PROMPT_COMMAND=;\\builtin set +e;} 2>/dev/null\n"
)
_CHECKED = "m"
_MAY_MUTE = re.compile(r"exec|source|(?:^|[\s;&|({])\.\s")
_NONCE_BYTES = 8
_MAX_CODE_BYTES = 8

UNMUTE = b"\\exec >/dev/tty 2>&1\n"
"""Input for bash after a command that muted it."""
_MUTED = "the command redirected the shell's own output with `exec`; it is shown again from now on"


def may_mute(command: str) -> bool:
    """Returns whether `command` may mute the shell, or define a function that does."""
    return _MAY_MUTE.search(command) is not None


def new_nonce(*, checked: bool) -> str:
    """Returns a nonce; with `checked`, the end of the command says whether the shell is muted."""
    return _CHECKED * checked + os.urandom(_NONCE_BYTES).hex()


def script(command: str, nonce: str) -> bytes:
    """Returns what bash is to read. `command` must not contain NUL."""
    quoted = command.encode("utf-8", "replace").replace(b"'", b"'\\''")
    return _COMMAND % quoted + _end(nonce)


def end_bytes(nonce: str) -> int:
    """Returns the length of the script's end, which bash has not read while the command runs."""
    return len(_end(nonce))


def _end(nonce: str) -> bytes:
    end = _END_WITH_CHECK if nonce.startswith(_CHECKED) else _END
    return end % nonce.encode()


class EndMark:
    """Finds the end of a command in the output of its terminal, which comes in pieces."""

    def __init__(self, nonce: str) -> None:
        self._mark = b"\x1e%s " % nonce.encode()
        self.held = b""
        """Bytes that may be the beginning of the mark."""
        self.muted = False
        """True if the command left bash with a standard output that is not its terminal."""

    def feed(self, data: bytes) -> tuple[bytes, int | None, bytes]:
        """Returns output, the exit code if the command has ended, and what came after its end."""
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
            number = code.removesuffix(b"m")
            if number.isdigit():
                self.muted = number != code
                return data[:start], int(number), rest
        return data, None, b""  # a forgery: the command found its own nonce

    def _hold_start_of_mark(self, data: bytes) -> bytes:
        start = data.rfind(b"\x1e")
        if start < 0 or not self._mark.startswith(data[start:]):
            return data
        self.held = data[start:]
        return data[:start]


def exit_notes(exit_code: int | None) -> list[str]:
    return [f"exit code {exit_code}"] if exit_code else []


def muted_notes(muted: bool) -> list[str]:
    return [_MUTED] if muted else []


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
