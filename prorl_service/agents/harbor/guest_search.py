"""Puts a verifier's own modules before those of the agent: every Python of a verifier loads it, as
`sitecustomize`.

`python -m` and `-c` search the current directory first, and so does a PYTHONPATH with the working
directory in it. What is found there would stand for modules of the verifier's programs. Imports
only the standard library of any Python 3.
"""

import os
import sys
from importlib.machinery import PathFinder

WORK, ISOLATED = "PRORL_WORK", "PRORL_ISOLATED"
"""Variables: the working directory with a slash at its end; whether the current directory is left
out and the rest of the work searched after the image, not only at the end of the path."""


class ImageFirst:
    """Finds modules of the image, whatever the path says, for programs that are not the agent's."""

    is_moved = False
    """Whether the current directory was moved, which is on the path only after this module has
    run."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> object:
        script = getattr(sys, "argv", [""])[0]
        has_file = script not in ("", "-", "-c", "-m")
        if path is not None or (has_file and _is_work(script)):
            return None
        if not (cls.is_moved or has_file) and sys.path[0] in ("", os.getcwd()):
            cls.is_moved = True
            directory = sys.path.pop(0)
            if ISOLATED not in os.environ or (script == "-m" and _is_missing(_module())):
                sys.path.append(directory)
        if ISOLATED not in os.environ:
            return None
        return PathFinder.find_spec(name, [one for one in sys.path if not _is_work(one)])


def _is_work(path: str) -> bool:
    return (os.path.abspath(path) + "/").startswith(os.environ[WORK])


def _module() -> str:
    """Returns the name of the module that is run."""
    with open("/proc/self/cmdline", "rb") as file:
        arguments = file.read().decode(errors="replace").split("\0")
    return arguments[arguments.index("-m") + 1] if "-m" in arguments else "runpy"


def _is_missing(module: str) -> bool:
    return PathFinder.find_spec(module.partition(".")[0]) is None


if WORK in os.environ:
    sys.path.sort(key=_is_work)
    sys.meta_path.insert(sys.meta_path.index(PathFinder), ImageFirst)  # type: ignore[arg-type]
