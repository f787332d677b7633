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
out, not searched last."""


class CurrentDirectory:
    """A finder that finds nothing. Its first call moves the current directory, which is on the path
    only after this module has run."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> None:
        script = getattr(sys, "argv", [""])[0]
        if script not in ("", "-", "-c", "-m"):
            sys.meta_path.remove(cls)
        elif sys.path[0] in ("", os.getcwd()):
            sys.meta_path.remove(cls)
            directory = sys.path.pop(0)
            if ISOLATED not in os.environ or (script == "-m" and _is_missing(_module())):
                sys.path.append(directory)


def _module() -> str:
    """Returns the name of the module that is run."""
    with open("/proc/self/cmdline", "rb") as file:
        arguments = file.read().decode(errors="replace").split("\0")
    return arguments[arguments.index("-m") + 1] if "-m" in arguments else "runpy"


def _is_missing(module: str) -> bool:
    return PathFinder.find_spec(module.partition(".")[0]) is None


if WORK in os.environ:
    sys.path.sort(key=lambda path: (path + "/").startswith(os.environ[WORK]))
    sys.meta_path.insert(0, CurrentDirectory)
