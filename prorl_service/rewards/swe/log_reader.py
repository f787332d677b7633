"""A program that reads the log of a test command: status by test.

Hostile logs can keep a parser busy forever, but a program can be killed. The parsers are those of
the package swebench (https://github.com/SWE-bench/SWE-bench), which data sets were made with, so
that tests have the same names. A test that the runner reports as failed has failed, whatever a
parser makes of the rest. Standard library and swebench only.
"""

import importlib
import importlib.util
import json
import re
import resource
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, cast

INSTALL = "install it where the service runs: pip install --no-deps 'swebench>=5,<6'"
MEMORY_BYTES = 2 << 30

WORDS = {"XFAIL": "xfailed"}
"""Statuses that parsers name differently from `rewards.swe`."""

# Lines about each failure at the end of a log. sympy's stands between underscores.
UNITTEST = re.compile(r"(?:FAIL|ERROR): (?P<whole>(?P<test>\w+ \([\w.]+\))?.*)")
PYTEST = re.compile(r"(?:FAILED|ERROR) (?P<test>\S.*)")
SYMPY = re.compile(r"[^:]+\.py::?(?P<test>\w+)")

PASSED = (
    (
        re.compile(r"^test_.* ok(?: +\[\w+\])?$", re.MULTILINE),
        re.compile(r"tests finished: (\d+) passed"),
    ),
    (
        re.compile(r"^PASSED \S+::", re.MULTILINE),
        re.compile(r"^=+ (?:.*, )?(\d+) passed", re.MULTILINE),
    ),
)
"""Line of a passed test, and their number at the end: sympy's, pytest's."""

Parser = Callable[[str, Any], Mapping[str, str]]


@cache
def load_parser(name: str) -> Parser:
    """Returns a log parser, for Python's runners only. Raises `ValueError` that says what to do."""
    packages = ("swebench.harness", "swebench.harness.log_parsers")
    module = swebench_module("swebench.harness.log_parsers.python", without=packages)
    known = sorted(key for key in vars(module) if key.startswith("parse_log_"))
    if name not in known:
        raise ValueError(f"{name!r} is not one of {', '.join(known)}")
    return cast(Parser, getattr(module, name))


def swebench_module(name: str, *, without: Sequence[str]) -> Any:
    """Imports a module of swebench without its parent packages, which need docker and much more.

    Raises `ValueError` that says what to do.
    """
    package = importlib.util.find_spec("swebench")
    if package is None or not package.submodule_search_locations:
        raise ValueError(f"needs the package swebench; {INSTALL}")
    try:
        with _stand_ins(without, Path(package.submodule_search_locations[0])):
            return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(f"{name} cannot be loaded ({error}); {INSTALL}") from error


@contextmanager
def _stand_ins(packages: Sequence[str], directory: Path) -> Iterator[None]:
    absent = [name for name in packages if name not in sys.modules]
    for name in absent:
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = [str(directory.joinpath(*name.split(".")[1:]))]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


def read_log(log: str, parser: str) -> dict[str, str]:
    """Returns the status by test, in the words of `rewards.swe`. Can take forever."""
    parsed = load_parser(parser)(log, None)
    statuses = {test: WORDS.get(status, status.lower()) for test, status in parsed.items()}
    for test in reported_failures(log):
        if statuses.get(test, "passed") == "passed":
            statuses[test] = "failed"
    if tells_of_too_many(log):
        passed = [test for test, status in statuses.items() if status == "passed"]
        statuses.update(dict.fromkeys(passed, "doubtful"))
    return statuses


def tells_of_too_many(log: str) -> bool:
    """Returns whether the log shows more passed tests than the runner counted, if it did."""
    for line, counted in PASSED:
        counts = [int(count) for count in counted.findall(log)]
        if counts and len(line.findall(log)) > sum(counts):
            return True
    return False


def reported_failures(log: str) -> set[str]:
    """Returns the names of tests that the runner reports as failed, in all forms of ids."""
    found: set[str] = set()
    lines = [line.rstrip() for line in log.split("\n")]
    for line, following in pairwise([*lines, ""]):
        words = [word for word in line.split() if word.strip("_")]
        if match := UNITTEST.fullmatch(line):
            found |= {match["whole"], match["test"] or "", following}  # a docstring may follow
        elif match := PYTEST.fullmatch(line):
            found |= {match["test"].partition(" - ")[0], match["test"].split()[0]}
        elif len(words) == 1 and (match := SYMPY.fullmatch(words[0])):
            found.add(match["test"])
    return found


def main() -> None:
    """Reads a log from standard input, writes JSON to standard output. Argument: the parser."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    log = sys.stdin.buffer.read().decode(errors="replace")
    json.dump(read_log(log, sys.argv[1]), sys.stdout)


if __name__ == "__main__":
    main()
