"""Newer releases of what we hook into: `python -m bench.neighbours [NAME...]`.

Downloads the newest wheel of each package in `prorl_service/neighbours.toml`, unpacks it without
installing it, and looks up in its source all that ours uses: names, arguments, methods that we
override or stand in for. Exits with 1 if something is broken. Needs a Python that can read them.
"""

import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench import result
from bench.neighbours import compare
from bench.neighbours.sources import Sources
from bench.neighbours.uses import Use, class_in, uses

TOP = Path(__file__).parents[2]
TABLE = TOP / "prorl_service/neighbours.toml"
OURS = (TOP / "prorl_service", TOP / "plugins")


def checked(name: str, about: dict[str, Any], sources: Sources) -> tuple[int, list[str]]:
    """Returns the number of hooks into a package, and what is broken in these sources."""
    hooks = list(uses(OURS, about["modules"], TOP))
    for ours, theirs in about.get("stand_ins", {}).items():
        hooks.append(Use(theirs, ours, subclasses=[class_in(TOP, ours)]))
    return len(hooks), [one for use in hooks for one in compare.problems(use, sources)]


def unpacked(name: str, directory: Path) -> str:
    """Unpacks the newest wheel, and returns its release."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "-d",
        str(directory),
        name,
    ]
    subprocess.run(command, check=True)
    [wheel] = directory.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = [one for one in archive.namelist() if one.endswith(".py")]
        archive.extractall(directory, names)
    return wheel.name.split("-")[1]


def main(names: Sequence[str]) -> int:
    table = tomllib.loads(TABLE.read_text())
    rows: list[dict[str, object]] = []
    broken: list[str] = []
    for name in names or table:
        with TemporaryDirectory() as directory:
            release = unpacked(name, Path(directory))
            hooks, problems = checked(name, table[name], Sources(Path(directory)))
        print(*problems, sep="\n", end="\n" if problems else "")
        broken += problems
        is_known = release == table[name]["newest"]
        rows.append(
            {"neighbour": name, "release": release, "known": is_known, "hooks": hooks}
            | {"broken": len(problems)}
        )
    checked_hooks = sum(int(str(row["hooks"])) for row in rows)
    headline = {
        "neighbours": len(rows),
        "hooks": checked_hooks,
        "hooks_checked": checked_hooks,
        "hooks_broken": len(broken),
        "newest_tried": sum(bool(row["known"]) for row in rows),
    }
    result.write("neighbours", rows, headline)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
