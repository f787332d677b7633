"""What we use, looked up in other packages: `scripts/neighbours [NAME[==RELEASE]...]`.

Unpacks the newest wheel or npm package of each, or that release, without installing it, and
compares names, signatures, fields and routes in its source. `--installed` compares what is
installed beside this Python instead. Exits with 1 if something is broken. Python must be new enough
to read the sources.
"""

import argparse
import sys
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from tempfile import TemporaryDirectory

from prorl_service.neighbours import Neighbour, neighbours, table
from scripts.neighbour_check import packages
from scripts.neighbour_check.hooks import hooks
from scripts.neighbour_check.presets import presets
from scripts.neighbour_check.sources import Sources

OURS = Path(__file__).parents[2]


def compared(one: Neighbour, ours: Path, directory: Path, release: str) -> int:
    """Returns how much is broken in the sources below `directory`, which are of `release`."""
    found = hooks(one, ours)
    problems = [problem for hook in found for problem in hook(Sources(directory))]
    return told(one.title, release, len(found), problems)


def of_program(one: Neighbour, ours: Path) -> int:
    """Asks the program that is installed here; nothing is checked if there is none."""
    release = one.installed()
    if release is None:
        print(f"{one.title}: none here", flush=True)
        return 0
    return compared(one, ours, ours, release)


def told(title: str, release: str, hooks: int, problems: list[str]) -> int:
    print(
        f"{title} {release}: {len(problems)} of {hooks} broken", *problems, sep="\n  ", flush=True
    )
    return len(problems)


def of_newest(ours: Path, names: list[str]) -> Iterator[int]:
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
            yield told(preset.title, *preset.compared())


def of_installed() -> Iterator[int]:
    for one in neighbours().values():
        if one.package and (release := one.installed()) is not None:
            directory = Path(str(distribution(one.package).locate_file("")))
            yield compared(one, OURS, directory, release)
        elif one.program:
            yield of_program(one, OURS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--installed", action="store_true", help="what is beside this Python")
    parser.add_argument("--ours", type=Path, default=OURS, help="another checkout of ours")
    options = parser.parse_args()
    found = of_installed() if options.installed else of_newest(options.ours, options.names)
    return 1 if sum(found) else 0


if __name__ == "__main__":
    sys.exit(main())
