"""Lines for a terminal or a pipe, in which text of models and tools can do no harm.

Each line of such text follows a margin, so that it cannot pass for a line of this program;
`utils.visible` disarms its characters. Colours are used only on terminals, without NO_COLOR.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from typing import TextIO

from rich.cells import get_character_cell_size
from rich.console import Console, RenderableType
from rich.text import Text

from prorl_service.utils.visible import visible

FOLD_LINES = 20
"""Most lines of a folded block."""
TAIL_LINES = 6
"""Number of those lines that come from the block's end."""
FOLD_CHARS = 2000
"""Most characters of a line in a folded block."""
LABEL_CHARS = 10
MARGIN_CHARS = LABEL_CHARS + len(" | ")
MIN_CHARS = 20
"""Minimum width of text, however narrow the terminal."""
PIPE_CHARS = 1000
"""Width without a terminal, so that a row of a table is one line."""
TAB_CHARS = 4


class Screen:
    def __init__(
        self,
        file: TextIO,
        *,
        full: bool = False,
        on_hang_up: Callable[[], None] = lambda: None,
    ) -> None:
        """`full` turns folding off. `on_hang_up` is called when the reader of a pipe is gone."""
        if hasattr(file, "reconfigure"):
            file.reconfigure(errors="backslashreplace")  # a locale may have few characters
        self._is_terminal = file.isatty()
        has_colours = self._is_terminal and not os.environ.get("NO_COLOR")
        self._console = _Console(
            file=file,
            color_system="auto" if has_colours else None,
            markup=False,
            emoji=False,
            highlight=False,
            width=None if self._is_terminal else PIPE_CHARS,
        )
        self._console.on_hang_up = on_hang_up
        self._full = full
        self._prefix = ""

    def behind(self, prefix: str) -> "Screen":
        """Returns a screen that prints the same way, with `prefix` before each line."""
        other = copy(self)
        other._prefix = prefix
        return other

    def line(self, text: str, style: str = "") -> None:
        """Prints one of this program's own lines."""
        self._print("", text, style)

    def note(self, text: str) -> None:
        """Prints a one-line remark on the block above, without control characters."""
        for part in self._wrapped(text):
            self._print(f"{'':{MARGIN_CHARS}}{part}")

    def block(self, label: str, text: str, style: str = "", *, fold: bool = False) -> None:
        """Prints others' text after a margin. `fold` leaves out the middle of long text."""
        lines = visible(text).strip("\n").split("\n")
        if fold and not self._full:
            lines = folded(lines)
        if not self._is_terminal:
            self._write(lines, label)
            return
        for part in (part for line in lines for part in self._wrapped(line)):
            self._print(f"{label:>{LABEL_CHARS}} | ", part, style)
            label = ""

    def _write(self, lines: Sequence[str], label: str) -> None:
        """Writes a block that needs no layout: rich would take a minute for some megabytes."""
        margin = f"{self._prefix}{'':>{LABEL_CHARS}} | "
        text = f"{self._prefix}{label:>{LABEL_CHARS}} | " + f"\n{margin}".join(lines)
        if self._console.quiet:
            return
        try:
            self._console.file.write(f"{text}\n")
            self._console.file.flush()
        except OSError:
            self._console.on_broken_pipe()

    def table(self, table: RenderableType) -> None:
        """Prints a table of this program's own text."""
        self._console.print(table, crop=False)

    def _wrapped(self, line: str) -> Iterable[str]:
        """Breaks a line for a terminal, which would otherwise wrap it without a margin."""
        if not self._is_terminal:
            return [line]
        room = self._console.width - len(self._prefix) - MARGIN_CHARS
        return wrapped(line, max(room, MIN_CHARS))

    def _print(self, margin: str, text: str = "", style: str = "") -> None:
        try:
            line = Text.assemble((self._prefix + margin, "dim"), (text, style))
            self._console.print(line, soft_wrap=True)
        except OSError:  # a full disk is not the fault of the rollout being shown
            self._console.on_broken_pipe()


class _Console(Console):
    """Goes quiet when its reader is gone; rich would end the program from within a callback."""

    on_hang_up: Callable[[], None]

    def on_broken_pipe(self) -> None:
        self.quiet = True
        with open(os.devnull, "w") as devnull:
            os.dup2(devnull.fileno(), self.file.fileno())
        self.on_hang_up()


def folded(lines: Sequence[str]) -> list[str]:
    """Returns the first and the last lines of many, and the beginning of long ones. Pure."""
    kept = [_cut(line) for line in lines]
    if (left_out := len(kept) - FOLD_LINES) <= 0:
        return kept
    note = f"[... {left_out} lines left out; --full shows them ...]"
    return [*kept[: FOLD_LINES - TAIL_LINES], note, *kept[-TAIL_LINES:]]


def _cut(line: str) -> str:
    left_out = len(line) - FOLD_CHARS
    if left_out <= 0:
        return line
    return f"{line[:FOLD_CHARS]} [... {left_out} characters left out; --full shows them ...]"


def wrapped(line: str, width: int) -> Iterator[str]:
    """Breaks a line at spaces, or within words where it must. Pure.

    Counts cells character by character: terminals differ in which they combine, but draw at most
    that many cells.
    """
    line = line.expandtabs(TAB_CHARS)
    start = 0
    while (stop := _end(line, start, width)) < len(line):
        space = line.rfind(" ", start + 1, stop + 1)
        end = space if space > start else stop
        yield line[start:end]
        start = end + (line[end] == " ")
    yield line[start:]


def _end(line: str, start: int, width: int) -> int:
    """Returns the end of the part of `line` from `start` that fits; at least one character."""
    cells = 0
    for place in range(start, len(line)):
        cells += max(1, get_character_cell_size(line[place]))
        if cells > width:
            return max(place, start + 1)
    return len(line)
