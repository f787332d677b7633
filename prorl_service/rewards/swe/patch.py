"""Changes of a patch that count: source does, files that decide about the tests do not.

Pure: works on git's list of changes, not on the text of a patch, which can lie.
"""

import re
import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_TABLE = tomllib.loads(Path(__file__).with_name("protected.toml").read_text())
SETTINGS, TEST_DIRECTORIES = frozenset(_TABLE["settings"]), frozenset(_TABLE["directories"])
TEST_MODULES = frozenset((*_TABLE["start_up"], *_TABLE["tools"]))
TEST_FILE, SIGNALS = re.compile(_TABLE["test_file"]), re.compile(_TABLE["signals"])
ORDINARY_MODES = frozenset({"000000", "100644", "100755"})
"""Modes of plain files; symbolic links and submodules are not. Zeros for an absent file."""

MAX_PATCH_BYTES = 4 << 20
MAX_PATCH_LINES = 100_000
MAX_PATCH_HUNKS = 10_000
"""Maximum hunks of a patch: git's time to place them grows with hunks times lines of the file."""
MAX_UNFOLDED_BYTES = 512 << 20
"""Maximum size of binary files that a patch may declare: a few bytes can unfold to gigabytes in
memory."""


def excess(patch: bytes) -> str:
    """Returns what a patch has too much of; empty if git may have it."""
    sizes = re.findall(rb"^(?:literal|delta) ([0-9]{1,18})", patch, re.MULTILINE)
    counted = {
        "bytes": (len(patch), MAX_PATCH_BYTES),
        "lines": (patch.count(b"\n"), MAX_PATCH_LINES),
        "hunks": (patch.count(b"\n@@ "), MAX_PATCH_HUNKS),
        "bytes of binary files": (sum(map(int, sizes)), MAX_UNFOLDED_BYTES),
    }
    for what, (found, most) in counted.items():
        if found > most:
            return f"the patch has {found} {what}, more than {most}"
    return ""


@dataclass(frozen=True, slots=True)
class Change:
    """One file, before and after. A renamed file is two changes."""

    path: str
    old_mode: str
    new_mode: str

    @property
    def is_new(self) -> bool:
        return self.old_mode == "000000"


def changes(raw: bytes) -> list[Change]:
    """Parses the output of `git diff --raw -z --no-renames`."""
    fields = raw.decode(errors="surrogateescape").split("\0")[:-1]
    heads, paths = fields[::2], fields[1::2]
    return [
        Change(path, *head.removeprefix(":").split()[:2])
        for head, path in zip(heads, paths, strict=True)
    ]


def is_protected(change: Change, *, allowed: Collection[str], tests: Collection[str]) -> bool:
    """Returns whether a change must not be applied.

    `allowed`: files that the reference patch changes, whatever their names are, and directories
    (`src/_pytest/`) of a project whose source looks like tests. `tests`: files and directories that
    the data set brings or runs.
    """
    if change.new_mode not in ORDINARY_MODES or any(_collide(change.path, test) for test in tests):
        return True
    if any(change.path == one or _is_in(change.path, one) for one in allowed):
        return False
    return _decides_about_tests(PurePosixPath(change.path))


def _collide(path: str, test: str) -> bool:
    """Returns whether only one can exist: a file cannot be where a directory should be."""
    return path == test or path.startswith(f"{test}/") or test.startswith(f"{path}/")


def _is_in(path: str, directory: str) -> bool:
    return directory.endswith("/") and path.startswith(directory)


def _decides_about_tests(path: PurePosixPath) -> bool:
    stems = {part.partition(".")[0].lower() for part in path.parts}
    return (
        path.name.lower() in SETTINGS
        or path.suffix.lower() in _TABLE["compiled"]
        or TEST_FILE.fullmatch(path.name.lower()) is not None
        or not TEST_DIRECTORIES.isdisjoint(part.lower() for part in path.parts)
        or any(part.lower().endswith(tuple(_TABLE["metadata"])) for part in path.parts)
        or not TEST_MODULES.isdisjoint(stems)
    )


def patched_files(patch: str) -> list[str]:
    """Returns the files that a trusted patch changes, renamed ones by both names."""
    names = re.findall(r"^(?:---|\+\+\+) (?:[ab]/(.*?)|/dev/null)\t?$", patch, re.MULTILINE)
    renames = re.findall(r"^rename (?:from|to) (.*)$", patch, re.MULTILINE)
    binaries = re.findall(r"^diff --git a/(.*) b/\1$", patch, re.MULTILINE)
    return sorted({name for name in (*names, *renames, *binaries) if name})


def signals(patch: bytes, most: int = 20) -> list[str]:
    """Returns added lines that reach for a test runner's internals, for people to look at."""
    added = (line for line in patch.decode(errors="replace").splitlines() if line.startswith("+"))
    return [line[:200] for line in added if SIGNALS.search(line)][:most]
