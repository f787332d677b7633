"""Records the demo and draws it: `python -m documentation.recording`, some minutes.

Leaves docs/images/demo.cast, which asciinema plays, and demo.svg. `--draw` only draws what was
recorded. The demo must not have run before: outputs/demo has what a first run makes.
"""

import argparse

from documentation.pages import DOCS, ROOT
from documentation.recording import animation, record

CAST = ROOT / DOCS / "images" / "demo.cast"
PICTURE = CAST.with_suffix(".svg")
COMMAND = "scripts/demo"
"""What `make demo` runs, after `make setup`."""
OUTPUT = "outputs/demo"
COLUMNS, ROWS = 96, 14
TITLE = "A recording of the demo in a terminal: what scripts/demo prints, from start to end."


def picture() -> str:
    return animation.draw(record.read(CAST), TITLE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draw", action="store_true", help="only draw what was recorded")
    if not parser.parse_args().draw:
        if (ROOT / OUTPUT).exists():
            raise SystemExit(f"{OUTPUT} is there: move it away, to record a first run")
        record.write(record.record([str(ROOT / COMMAND)], COMMAND, COLUMNS, ROWS), CAST)
    PICTURE.write_text(picture(), encoding="utf-8")


if __name__ == "__main__":
    main()
