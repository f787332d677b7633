"""What we use, looked up in other packages: `python -m bench.neighbours [NAME[==RELEASE]...]`.

Unpacks the newest wheel or npm package of each, or that release, without installing it, and
compares names, signatures, fields and routes in its source. `--installed` compares what is
installed beside this Python instead. Exits with 1 if something is broken. Python must be new enough
to read the sources.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import distribution
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import result
from bench.neighbours import packages
from bench.neighbours.hooks import hooks
from bench.neighbours.presets import OfNpm, OfPyPI, presets
from bench.neighbours.sources import Sources
from prorl_service.neighbours import Neighbour, neighbours, table

OURS = Path(__file__).parents[2]
Row = dict[str, object]


def compared(one: Neighbour, ours: Path, directory: Path, release: str) -> Row:
    """Returns what is broken in the sources below `directory`, which are of `release`."""
    found = hooks(one, ours)
    problems = [problem for hook in found for problem in hook(Sources(directory))]
    return _row(one.title, release, one.newest, one.supports(release), len(found), problems)


def of_program(one: Neighbour, ours: Path) -> Row:
    """Asks the program that is installed here; nothing is checked if there is none."""
    if (release := one.installed()) is not None:
        return compared(one, ours, ours, release)
    return {
        **_row(one.title, "none here", one.newest, False, len(hooks(one, ours)), []),
        "checked": 0,
    }


def tried(one: OfNpm | OfPyPI) -> Row:
    release, count, problems = one.compared()
    return _row(one.title, release, one.version, True, count, problems)


def _row(
    title: str, release: str, newest: str, is_tested: bool, hooks: int, problems: list[str]
) -> Row:
    print(
        f"{title} {release}: {len(problems)} of {hooks} broken", *problems, sep="\n  ", flush=True
    )
    known = {"tested with": newest, "in its range": is_tested}
    counts = {"hooks": hooks, "checked": hooks, "broken": problems}
    return {"neighbour": title, "release": release, **known, **counts}


def of_newest(ours: Path, names: list[str]) -> Iterator[Row]:
    known = neighbours()
    if ours != OURS and (old := ours / "prorl_service/neighbours.toml").is_file():
        known = table(old.read_text(encoding="utf-8"))
    wanted = dict(name.partition("==")[::2] for name in names)
    for name, one in known.items():
        if one.package and name in (wanted or known):
            release = wanted.get(name, "")
            with TemporaryDirectory() as directory:
                found = packages.wheel(one.package, release, Path(directory))
                yield compared(one, ours, Path(directory), found)
        elif one.program and name in (wanted or known):
            yield of_program(one, ours)
    for preset in presets(ours):
        if preset.name in (wanted or [preset.name]):
            yield tried(preset)


def of_installed() -> Iterator[Row]:
    for one in neighbours().values():
        if one.package and (release := one.installed()) is not None:
            directory = Path(str(distribution(one.package).locate_file("")))
            yield compared(one, OURS, directory, release)
        elif one.program:
            yield of_program(one, OURS)


def _total(rows: Sequence[Row], column: str) -> int:
    return sum(int(str(row[column])) for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--installed", action="store_true", help="what is beside this Python")
    parser.add_argument("--ours", type=Path, default=OURS, help="another checkout of ours")
    options = parser.parse_args()
    rows = list(of_installed() if options.installed else of_newest(options.ours, options.names))
    broken = sum(len(row["broken"]) for row in rows if isinstance(row["broken"], list))
    if not options.installed and not options.names and options.ours == OURS:
        headline = {
            "neighbours": len(rows),
            "hooks": _total(rows, "hooks"),
            "hooks_checked": _total(rows, "checked"),
            "hooks_broken": broken,
            "newest_tried": sum(row["checked"] != 0 for row in rows),
        }
        result.write("neighbours", rows, headline)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
