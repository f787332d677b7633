"""Draws pictures again from their files: `python -m bench.plots [NAME...]`; without names all.

Measures nothing. Says which files lack what their picture shows; those pictures stay as they are.
"""

import argparse

from bench.plots.drawing import PICTURES, LacksSeriesError, redraw


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="*", help=", ".join(PICTURES))
    names = parser.parse_args().name or [*PICTURES]
    if unknown := set(names) - set(PICTURES):
        parser.error(f"no such picture: {', '.join(sorted(unknown))}")
    for name in names:
        try:
            print(redraw(name))
        except LacksSeriesError as error:
            print(error)


if __name__ == "__main__":
    main()
