"""What of a written layer comes into the sandbox in which it is graded: what is declared as work.

A verifier that runs among the files of the agent believes its own programs. So the guard lists what
is restored, and everything else stays as the image has it. It says nothing of what the agent's own
code does while it is tested.
"""

import fnmatch
import os
import posixpath
from collections.abc import Sequence
from typing import NamedTuple

SETTINGS = (
    # pytest and coverage, in the directories of tests and above them.
    *("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml"),
    *("pyproject.toml", "tox.ini", "setup.cfg", ".coveragerc", "test/__init__.py"),
    "tests/__init__.py",
    # Python, on its search path.
    *("sitecustomize*", "usercustomize*", "__pycache__/*", "*-info/entry_points.txt"),
    # git and installers, in the current directory.
    *(".git", ".git/config*", ".git/hooks/*"),
    *("uv.toml", ".python-version", ".npmrc", ".cargo/config*"),
)
"""Files that programs load unasked from where they run: restored only if they are work by name."""
CLOSED = ("tests", "solution", "logs", "proc")
"""Directories that no link of the agent's leads to: answers, rewards, and ways around."""
SEARCHED = ("bin", "sbin", "lib", "lib64", "site-packages", "dist-packages")
"""Directories in which programs find things by name: what is declared in them is so by name."""


class Guard(NamedTuple):
    """Paths have no slash at their beginning. A root is a file or directory, what is in a directory
    (`DIRECTORY/`), or all names in it that begin with a dot (`DIRECTORY/.`)."""

    never: Sequence[str] = ()
    """Roots of which nothing is restored."""
    work: Sequence[str] | None = None
    """Roots that are restored; None: all."""
    protected: Sequence[str] = ()
    """Roots that stay as the image has them. The longest root of both says what a path is."""
    allow: Sequence[str] = ()
    """Patterns of paths that are restored nevertheless, except those of `never`."""

    def refuses(self, path: str, *, is_directory: bool = False, target: str | None = None) -> bool:
        """Returns whether an entry is left out. `target` is that of a symbolic link."""
        if _longest(self.never, path):
            return True
        if self.work is None or any(fnmatch.fnmatchcase(path, one) for one in self.allow):
            return False
        if target is not None and _leads_astray(path, target):
            return True
        if _longest(self.work, path) <= _longest(self.protected, path):
            return True
        return not is_directory and path not in self.work and _is_setting(path)

    def root_of(self, path: str) -> str:
        """Returns the root that would make a refused file work: the first directory on its way that
        is not there, after the last one that is searched by name; else, and for settings, itself.
        """
        parts = path.split("/")
        searched = [end for end, part in enumerate(parts[:-1], 1) if part in SEARCHED]
        if not _is_setting(path):
            for end in range(max(searched, default=0) + 1, len(parts)):
                root = "/".join(parts[:end])
                if not os.path.isdir(f"/{root}"):
                    return root
        return path


def _longest(roots: Sequence[str], path: str) -> int:
    """Returns the length of the longest root that holds a path; 0 if none does."""
    return max((len(root) for root in roots if _holds(root, path)), default=0)


def _holds(root: str, path: str) -> bool:
    if f"/{root}".endswith(("/", "/.")):
        return path.startswith(root)
    return path == root or path.startswith(f"{root}/")


def _is_setting(path: str) -> bool:
    name = f"/{path.lower()}"
    return any(fnmatch.fnmatchcase(name, f"*/{pattern}") for pattern in SETTINGS)


def _leads_astray(path: str, target: str) -> bool:
    """Returns whether a link may lead to what is closed, whatever other links are on the way."""
    steps = target.strip("/").split("/")
    if ".." in steps[next((i for i, step in enumerate(steps) if step != ".."), len(steps)) :]:
        return True
    end = posixpath.normpath(posixpath.join("/", posixpath.dirname(path), target)).strip("/")
    return not end or bool(_longest(CLOSED, end))
