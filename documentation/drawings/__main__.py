"""Writes all drawings: `python -m documentation.drawings`."""

from collections.abc import Callable

from documentation.drawings import architecture, machines, states, tokens
from documentation.drawings.svg import Drawing
from documentation.pages import DOCS, ROOT

DIRECTORY = ROOT / DOCS / "images"
DRAWINGS: dict[str, Callable[[], Drawing]] = {
    "architecture.svg": architecture.draw,
    "states.svg": states.draw,
    "tokens.svg": tokens.draw,
    "machines.svg": machines.draw,
}


def main() -> None:
    for name, draw in DRAWINGS.items():
        (DIRECTORY / name).write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
