"""Records what a command prints to a terminal, in asciinema's format (asciicast v2).

Changes nothing of the text. What comes within `GRAIN_S` is one event, so that a progress bar does
not fill the file.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ptyprocess import PtyProcessUnicode

GRAIN_S = 0.25


@dataclass(frozen=True, slots=True)
class Recording:
    """`events`: seconds since the start, and the text printed then."""

    command: str
    columns: int
    rows: int
    events: list[tuple[float, str]]


def record(command: Sequence[str], shown: str, columns: int, rows: int) -> Recording:
    """Runs the command in a terminal of that size. `shown` is what a person types for it.

    Raises `SystemExit` if the command fails.
    """
    process = PtyProcessUnicode.spawn(list(command), dimensions=(rows, columns))
    events = list(_events(process))
    process.close()
    if process.exitstatus != 0:
        raise SystemExit(f"{shown} failed: {''.join(text for _, text in events)[-2000:]}")
    return Recording(shown, columns, rows, events)


def _events(process: PtyProcessUnicode) -> Iterator[tuple[float, str]]:
    started = time.monotonic()
    at, text = 0.0, ""
    while True:
        try:
            more = process.read()
        except EOFError:
            break
        now = time.monotonic() - started
        if text and now - at >= GRAIN_S:
            yield round(at, 2), text
            text = ""
        at, text = (at if text else now), text + more
    if text:
        yield round(at, 2), text


def write(recording: Recording, path: Path) -> None:
    header = {
        "version": 2,
        "width": recording.columns,
        "height": recording.rows,
        "command": recording.command,
    }
    lines = [header, *([at, "o", text] for at, text in recording.events)]
    path.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in lines))


def read(path: Path) -> Recording:
    header, *events = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    printed = [(float(at), str(text)) for at, kind, text in events if kind == "o"]
    return Recording(header["command"], header["width"], header["height"], printed)
