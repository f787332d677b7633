"""The guarantees of the project: `guarantees.json` lists them, with the regression tests of each.

Each stands alone, and has tests that exist. Tests are looked up in the source: none is imported.
"""

import ast
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Guarantee:
    sentence: str
    tests: tuple[str, ...]
    """Tests that fail when it is broken, as pytest names them: `FILE::FUNCTION`."""
    missing: str = ""
    """Reason why it does not hold yet; "" for one that does."""


GUARANTEES = [
    Guarantee(one["guarantee"], tuple(one["tests"]), one.get("missing", ""))
    for one in json.loads(Path(__file__).with_name("guarantees.json").read_text())
]


def existing_tests(guarantee: Guarantee, root: Path = ROOT) -> list[str]:
    """Returns the guarantee's tests that exist below `root`."""
    return [test for test in guarantee.tests if _exists(*test.split("::"), root=root)]


def _exists(file: str, function: str, *, root: Path) -> bool:
    return function.startswith("test_") and function in _functions(root / file)


@cache
def _functions(file: Path) -> frozenset[str]:
    """Returns the names of the module's functions; empty if there is no such file."""
    body = ast.parse(file.read_text()).body if file.is_file() else []
    return frozenset(
        one.name for one in body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    )


@pytest.mark.parametrize("guarantee", GUARANTEES, ids=lambda one: one.sentence)
def test_each_guarantee_has_tests_that_exist_or_a_reason_why_not(guarantee: Guarantee) -> None:
    is_tested = bool(guarantee.tests) and existing_tests(guarantee) == list(guarantee.tests)
    assert is_tested is not bool(guarantee.missing)
    assert len(set(guarantee.tests)) == len(guarantee.tests)


def test_each_guarantee_is_stated_once_in_one_sentence() -> None:
    sentences = [one.sentence for one in GUARANTEES]
    assert len(set(sentences)) == len(sentences)
    assert all(one.endswith(".") and ". " not in one and "\n" not in one for one in sentences)


def test_only_functions_of_the_module_are_tests(tmp_path: Path) -> None:
    source = "def test_a(): ...\nasync def test_b(): ...\ndef helper(): ...\nclass C:\n"
    source += "    def test_c(self): ...\n"
    (tmp_path / "test_x.py").write_text(source)
    names = ("test_a", "test_b", "helper", "test_c", "test_d")
    listed = Guarantee("Any.", (*(f"test_x.py::{name}" for name in names), "test_y.py::test_a"))
    assert existing_tests(listed, tmp_path) == ["test_x.py::test_a", "test_x.py::test_b"]
