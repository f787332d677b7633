"""The screens of a recording: what stands in each line of the terminal, over time.

Knows what progress bars print: carriage returns, line feeds, and the cursor going up a line. Other
control sequences raise `ValueError`, so that no picture shows what a terminal would not.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

PIECE = re.compile(r"\r|\n|\x1b\[A|[^\x00-\x1f]+")
Screen = tuple[str, ...]


@dataclass(slots=True)
class Terminal:
    """`lines` grow as they are needed: nothing scrolls out."""

    columns: int
    lines: list[str] = field(default_factory=lambda: [""])
    _row: int = 0
    _column: int = 0

    def feed(self, text: str) -> None:
        end = 0
        for piece in PIECE.finditer(text):
            if piece.start() != end:
                break
            end = piece.end()
            self._take(piece[0])
        if end != len(text):
            raise ValueError(f"not known to the terminal: {text[end : end + 20]!r}")

    def _take(self, piece: str) -> None:
        if piece == "\r":
            self._column = 0
        elif piece == "\n":
            self._down()
        elif piece == "\x1b[A":
            self._row = max(0, self._row - 1)
        else:
            self._write(piece)

    def _write(self, text: str) -> None:
        """Writes over what is there; what is longer than a line goes on in the next."""
        while text:
            if self._column == self.columns:
                self._down()
                self._column = 0
            start, room = self._column, self.columns - self._column
            part, text = text[:room], text[room:]
            self._column += len(part)
            line = self.lines[self._row].ljust(start)
            self.lines[self._row] = line[:start] + part + line[self._column :]

    def _down(self) -> None:
        self._row += 1
        self.lines += [""] * (self._row + 1 - len(self.lines))

    def screen(self) -> Screen:
        return tuple(line.rstrip() for line in self.lines)


def screens(
    columns: int,
    events: Sequence[tuple[float, str]],
    *,
    faster: float,
    longest_s: float,
    every_s: float,
) -> Iterator[tuple[float, Screen]]:
    """Yields screens with the seconds at which they are shown, at most one for each `every_s`, and
    the last. Time runs `faster`, and no pause is longer than `longest_s`."""
    terminal = Terminal(columns)
    at = before = 0.0
    shown = -every_s
    for recorded, text in events:
        at += min((recorded - before) / faster, longest_s)
        before = recorded
        terminal.feed(text)
        if at - shown >= every_s:
            yield at, terminal.screen()
            shown = at
    yield at + every_s, terminal.screen()
