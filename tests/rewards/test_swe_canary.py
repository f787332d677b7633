"""Canaries: tests that are changed so that they must fail."""

import ast
import re
from collections.abc import Collection
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.rewards.swe.canary import BESIDE, Candidates, Version, versions

SOURCE = Path(__file__).with_name("canary_source.txt").read_text()
IDS = [
    *("t.py::test_plain", "t.py::TestMethods::test_method", "t.py::TestMethods::test_async"),
    *("t.py::test_leaves", "t.py::test_one_line"),
]


def functions(source: str) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    found = ast.walk(ast.parse(source))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name: node for node in found if isinstance(node, kinds)}


SUM = r"len\(\[\w+\] \* \d\)"
FIRST = (
    rf".*\n    (assert {SUM} == \d+|self.assertEqual\({SUM}, \d+\)|with [\w.]+aises\(ValueError\))"
)


def changed(test: str, seed: int = 0, source: str = SOURCE, *, fixed: bool = True) -> str:
    """Returns the source of the changed test, which is `fixed` by the reference patch or passed
    before; checks that nothing else changed."""
    tests = Candidates({"t.py": source}, *([test], []) if fixed else ([], [test]))
    first, second = versions(tests, Random(seed))
    version, whole = (second, first) if fixed else (first, second)
    assert whole.files == {"t.py": source}
    assert not whole.changed
    assert list(version.changed) == [test]
    before, after = functions(source), functions(version.files["t.py"])
    name = test.rpartition("::")[2]
    found, own = after.pop(name), before.pop(name)
    assert {key: ast.dump(node) for key, node in after.items()} == {
        key: ast.dump(node) for key, node in before.items()
    }
    assert ast.dump(found.args) == ast.dump(own.args)
    assert len(found.decorator_list) == len(own.decorator_list)
    assert ast.get_docstring(found) == ast.get_docstring(own)
    return ast.unparse(found)


def all_changed(test: str, source: str = SOURCE, *, fixed: bool = False) -> set[str]:
    return {changed(test, seed, source, fixed=fixed) for seed in range(60)}


def test_a_test_fails_first_or_late_or_in_the_package() -> None:
    found = all_changed(IDS[0])
    first = {one for one in found if re.search(rf'Text\."+\n    assert {SUM} == \d+\n', one)}
    package = {one for one in found if "half(object())" in one}
    assert first
    assert package
    assert found - first - package
    assert all(re.search(rf"    assert {SUM} == \d+$", one) for one in found - first)


def test_a_test_to_be_fixed_fails_in_one_of_its_own_assertions() -> None:
    own = ast.unparse(functions(SOURCE)["test_plain"])
    for one in all_changed(IDS[0], fixed=True):
        pairs = zip(own.split("\n"), one.split("\n"), strict=True)
        [(was, now)] = [pair for pair in pairs if len(set(pair)) > 1]
        assert "twöwords" in was or "[2, -1]" in was
        assert now != was
    assert all("thing.size, 3)" not in one for one in all_changed(IDS[1], fixed=True))


def test_a_test_fails_in_each_of_its_own_ways() -> None:
    found = all_changed(IDS[1])
    for unmet in (
        rf"    with self.assertRaises\(ValueError\):\n        {SUM}$",
        rf"    self.assertEqual\({SUM}, \d+\)$",
    ):
        assert any(re.search(unmet, one) for one in found)
    assert any("object()" in one for one in found)
    assert all("self.assertEqual(thing.size, 3)" in one for one in found)


def test_an_exception_that_is_not_raised_fails_a_test() -> None:
    found = all_changed(IDS[2])
    unmet = rf"    with pytest.raises\(ValueError\):\n        {SUM}$"
    assert any(re.search(unmet, one) for one in found)
    assert all(one.startswith("async def") for one in found)


def test_a_test_expects_more_where_it_expects_no_literal() -> None:
    source = "def test_a():\n    x = f(1)\n    assert x == str(\n        1)\n"
    ends = [one.rpartition("\n    ")[2] for one in all_changed("t.py::test_a", source, fixed=True)]
    assert any(re.fullmatch(r"assert x == \[str\(1\), \d\]", end) for end in ends)


def test_a_test_that_may_return_early_fails_first() -> None:
    assert all(re.match(FIRST, one) for one in all_changed(IDS[3]))


def test_a_test_on_one_line_is_replaced() -> None:
    for one in all_changed(IDS[4]):
        assert re.fullmatch(rf"def test_one_line\(\):\n    assert {SUM} == \d+", one)


def end_of(source: str, test: str) -> str:
    _, second = versions(Candidates({"t.py": source}, [test], []), Random(0))
    assert second.files["t.py"].startswith(source.rstrip())
    return second.files["t.py"][len(source.rstrip()) :]


def test_a_test_without_a_source_is_replaced_at_the_end() -> None:
    inherited = end_of(SOURCE, "t.py::TestMethods::test_inherited")
    assert re.fullmatch(r"\n\n\nTestMethods.test_inherited = lambda self: \[\]\[\d\]\n", inherited)
    for_another_python = end_of("print 'x'\n", "t.py::test_x")
    assert re.fullmatch(r"\n\n\ndef test_x\(\):\n    assert \d == \d+\n", for_another_python)


MANY = "".join(
    f"def test_{number}():\n    x = f({number})\n    assert x == {number}\n\n\n"
    for number in range(30)
)
NAMES = [f"t.py::test_{number}" for number in range(30)]


@pytest.mark.parametrize("seed", range(10))
def test_each_run_has_tests_of_both_kinds(seed: int) -> None:
    runs = versions(Candidates({"t.py": MANY}, NAMES[:1], NAMES[1:]), Random(seed))
    first, second = (set(run.changed) for run in runs)
    assert len(first) == BESIDE
    assert NAMES[0] not in first
    assert NAMES[0] in second
    assert len(second) == BESIDE + 1
    assert not first & second
    for run in runs:
        before, after = functions(MANY), functions(run.files["t.py"])
        unlike = {name for name in after if ast.dump(after[name]) != ast.dump(before[name])}
        assert {f"t.py::{name}" for name in unlike} == set(run.changed)
        # Some fail first, others at the end.
        fails_first = ["len(" in ast.unparse(after[name].body[0]) for name in unlike]
        assert 0 < sum(fails_first) < len(fails_first)


def test_tests_to_be_fixed_are_divided_where_there_are_no_others() -> None:
    for count in (1, 2, 5, 30):
        tests = Candidates({"t.py": MANY}, NAMES[:count], [])
        first, second = versions(tests, Random(0))
        assert {*first.changed, *second.changed} == set(NAMES[:count])
        assert len(first.changed) == min(count // 2, BESIDE)


@pytest.mark.parametrize(
    "source",
    [
        "class TestA:\n    def test_x(self):\n        f()\nclass TestB(TestA):\n    pass\n",
        "class TestA:\n    def test_x(self):\n        f()\ndef test_x():\n    f()\n",
    ],
)
def test_a_test_that_cannot_be_told_from_others_is_not_changed_beside(source: str) -> None:
    sources = {"t.py": f"{source}\n\ndef test_fix():\n    f()\n"}
    tests = Candidates(sources, ["t.py::test_fix"], ["t.py::TestA::test_x"])
    first, second = versions(tests, Random(0))
    assert not first.changed
    assert list(second.changed) == ["t.py::test_fix"]


@given(kept=st.integers(2, 12), fixed=st.integers(1, 3), random=st.randoms(use_true_random=False))
def test_no_place_in_the_order_of_failures_tells_a_test_to_be_fixed(
    kept: int, fixed: int, random: Random
) -> None:
    """A patch swallows failures by their place alone; nothing is fixed."""
    tests = Candidates({"t.py": MANY}, NAMES[:fixed], NAMES[fixed : fixed + kept])
    order = random.sample(NAMES, len(NAMES))
    swallowed = {place for place in range(len(NAMES)) if random.random() < 0.5}

    def is_as_expected(version: Version, failing: Collection[str]) -> bool:
        failures = [test for test in order if test in {*version.changed, *failing}]
        shown = {test for place, test in enumerate(failures) if place not in swallowed}
        return shown == set(version.changed)

    first, second = versions(tests, random)
    broken = set(NAMES[:fixed])
    assert not (is_as_expected(first, broken) and is_as_expected(second, broken))


def test_tests_that_the_file_adds_to_a_class_are_changed_where_there_are_few_others() -> None:
    source = "class TestA:\n    def test_fix(self):\n        f()\n\n\nload(TestA)\n"
    fixed = "t.py::TestA::test_fix"
    kept = [f"t.py::TestA::test_{number}" for number in range(3)]
    first, second = versions(Candidates({"t.py": source}, [fixed], kept), Random(0))
    assert len(first.changed) == 1
    assert len(second.changed) == 3
    [added] = first.changed
    name = added.rpartition("::")[2]
    assert re.search(rf"\nTestA.{name} = lambda self: \[\]\[\d\]\n$", first.files["t.py"])


CHAINED = """\
from package import Table


def test_chaining():
    table = Table()
    assert (
        table.reset(1)
        .add("a")
        .size
    ) == 1
"""


def test_calls_on_several_lines_are_copied_as_one() -> None:
    assert any("object()" in one for one in all_changed("t.py::test_chaining", CHAINED))
