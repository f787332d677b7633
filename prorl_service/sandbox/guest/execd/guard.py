"""What a written layer may not bring into the sandbox in which it is graded.

A verifier that runs among the files of the agent believes its own programs. The guard leaves out
what would change them: programs and libraries of the image that were replaced, programs that come
before one of the image's in PATH, and files that programs such as Python and pytest load unasked.
It says nothing of what the agent's own code does while it is tested.
"""

import fnmatch
import os
import posixpath
from collections.abc import Sequence

LOADED_UNASKED = (
    "etc/ld.so.preload",
    "etc/pip.conf",
    "etc/gitconfig",
    "*/sitecustomize.py",
    "*/usercustomize.py",
    "*/.curlrc",
    "*/.wgetrc",
    "*/.config/pip/*",
    "*/.config/uv/*",
    "*/.pip/pip.conf",
    # pytest looks for these in all directories above the tests.
    *("conftest.py", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg"),
)
"""Patterns of files that are refused wherever they are new or changed."""


class Guard:
    def __init__(
        self,
        never: Sequence[str],
        search: Sequence[str],
        trees: Sequence[str],
        allow: Sequence[str],
    ) -> None:
        """Paths have no slash at their beginning.

        `never` are paths of which nothing is restored; `search` are the directories in which
        programs are found; in `trees`, files of the image stay as they are. Files that match a
        pattern of `allow` are restored nevertheless, except those of `never`.
        """
        self._never = never
        self._search = search
        self._trees = trees
        self._allow = allow

    def refuses(self, path: str, content: bytes, *, is_directory: bool) -> bool:
        """Returns whether an entry is left out. `content` is the beginning of a file's."""
        if any(_is_below(path, root) for root in self._never):
            return True
        if is_directory or any(fnmatch.fnmatchcase(path, pattern) for pattern in self._allow):
            return False
        if any(fnmatch.fnmatchcase(path, pattern) for pattern in LOADED_UNASKED):
            return bool(self._trees)
        return self._changes_a_program(path) or _is_loaded_by_python(path, content, self._trees)

    def _changes_a_program(self, path: str) -> bool:
        if any(_is_below(path, tree) for tree in self._trees) and os.path.lexists(f"/{path}"):
            return True
        directory, name = posixpath.split(path)
        if directory not in self._search:
            return False
        return any(os.path.lexists(f"/{other}/{name}") for other in self._search)


def _is_loaded_by_python(path: str, content: bytes, trees: Sequence[str]) -> bool:
    """Returns whether every Python, or every pytest, runs what a new file names."""
    if not trees or "-packages/" not in path:
        return False
    if path.endswith(".pth"):
        return any(line.startswith((b"import ", b"import\t")) for line in content.splitlines())
    return path.endswith("/entry_points.txt") and b"[pytest11]" in content


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root}/")
