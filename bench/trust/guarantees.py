"""The guarantees of the project, and the regression tests of each.

`guarantees.json` is the list. `python -m bench.trust.guarantees` prints how many there are, with
how many tests, as JSON. Tests are looked up in the source: nothing is imported or run.
"""

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bench import result

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("guarantees.json")


@dataclass(frozen=True, slots=True)
class Guarantee:
    sentence: str
    tests: tuple[str, ...]
    """Tests that fail when it is broken, as pytest names them: `FILE::FUNCTION`."""
    missing: str = ""
    """Reason why it does not hold yet; "" for one that does."""

    @property
    def is_tested(self) -> bool:
        """True if the guarantee has tests, and all of them exist."""
        return bool(self.tests) and existing_tests(self) == list(self.tests)


def guarantees() -> list[Guarantee]:
    listed = json.loads(LIST.read_text())
    return [
        Guarantee(one["guarantee"], tuple(one["tests"]), one.get("missing", "")) for one in listed
    ]


def existing_tests(guarantee: Guarantee, root: Path = ROOT) -> list[str]:
    """Returns the guarantee's tests that exist below `root`."""
    return [test for test in guarantee.tests if _exists(test, root)]


def findings(tests: Mapping[str, Sequence[str]]) -> result.Part:
    """Counts findings of a review, of which each has its tests."""
    listed = [Guarantee(name, tuple(of_it)) for name, of_it in tests.items()]
    rows = [
        {"finding": one.sentence, "tests": len(one.tests), "tested": one.is_tested}
        for one in listed
    ]
    tested = sum(one.is_tested for one in listed)
    return rows, {"findings": len(rows), "findings_with_test": tested}


def counts(listed: Sequence[Guarantee]) -> dict[str, int]:
    """Counts guarantees and tests; a test of several guarantees counts once."""
    return {
        "guarantees": len(listed),
        "guarantees_tested": sum(one.is_tested for one in listed),
        "tests": len({test for one in listed for test in existing_tests(one)}),
    }


def _exists(test: str, root: Path) -> bool:
    file, _, function = test.partition("::")
    return function.startswith("test_") and function in _functions(root / file)


@cache
def _functions(file: Path) -> frozenset[str]:
    """Returns the names of the module's functions; empty if there is no such file."""
    if not file.is_file():
        return frozenset()
    body = ast.parse(file.read_text()).body
    return frozenset(
        one.name for one in body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    )


if __name__ == "__main__":
    print(json.dumps(counts(guarantees()), indent=2))
