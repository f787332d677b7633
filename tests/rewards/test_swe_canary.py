"""Canaries: copies of tests that must fail."""

import ast
import re
from random import Random

import pytest

from prorl_service.rewards.swe.canary import with_canaries

SOURCE = '''\
import unittest

import pytest

from package import Thing, half


@pytest.mark.parametrize("x", [1, 2])
def test_plain(x):
    """Text."""
    assert half(
        x
    ) == x / 2
    assert half("ä") == "twö" "words"  # mutable
    assert [half(4), -half(2)] == [2, -1]


class TestMethods(unittest.TestCase):
    def test_method(self):
        thing = Thing(1).named("x")
        self.assertEqual(thing.size, 3)
        with self.assertRaises(ValueError):
            thing.named(None)

    async def test_async(self):
    \twith pytest.raises(KeyError) as error:
    \t\tThing(2)
    \tassert error.value


def test_leaves(x=1):
    if x:
        return
    assert half(1)


def test_one_line(): pass'''
IDS = [
    *("t.py::test_plain[a::b]", "t.py::TestMethods::test_method", "t.py::TestMethods::test_async"),
    *("t.py::test_leaves", "t.py::test_one_line"),
]


def functions(source: str) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    found = ast.walk(ast.parse(source))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name: node for node in found if isinstance(node, kinds)}


def canaries(test_ids: list[str], seed: int = 0) -> dict[str, str]:
    """Returns each canary's source by its name; checks that nothing else changed."""
    with_them, names = with_canaries(SOURCE, test_ids, Random(seed))
    before, after = functions(SOURCE), functions(with_them)
    found = {name: ast.unparse(after.pop(name)) for name in names}
    assert len(found) == len(names)
    assert {key: ast.dump(node) for key, node in after.items()} == {
        key: ast.dump(node) for key, node in before.items()
    }
    return found


def ends(source: str, end: str) -> bool:
    return re.search(f"{end}$", source) is not None


SUM = r"len\(\[\w+\] \* \d\)"
FIRST = (
    rf".*\n    (assert {SUM} == \d+|self.assertEqual\({SUM}, \d+\)|with [\w.]+aises\(ValueError\))"
)


@pytest.mark.parametrize("seed", range(20))
def test_canaries_fail_first_and_late_and_in_the_package(seed: int) -> None:
    first, changed, raising = canaries(IDS[:1], seed).values()
    assert re.search(rf"\n    assert {SUM} == \d+\n    'Text.'", first)
    assert raising.count("half(object())") in (1, 2, 3)
    assert ends(raising, rf"    assert {SUM} == \d+")
    # One of the test's own assertions expects something else; no assertion is added.
    own = ast.unparse(functions(SOURCE)["test_plain"]).replace('"""Text."""', "pass").split("\n")
    [(was, now)] = [
        pair for pair in zip(own[2:], changed.split("\n")[2:], strict=True) if len(set(pair)) > 1
    ]
    assert "twöwords" in was or "[2, -1]" in was
    assert now != was


@pytest.mark.parametrize("seed", range(20))
def test_canaries_fail_in_the_same_ways_as_their_test(seed: int) -> None:
    found = [*canaries(IDS[1:2], seed).values()]
    assert len(found) == 4
    assert any("self.assertEqual(thing.size, 3)" not in one for one in found)
    assert any(
        ends(one, rf"    with self.assertRaises\(ValueError\):\n        {SUM}") for one in found
    )
    assert any("object()" in one for one in found)


@pytest.mark.parametrize("seed", range(5))
def test_an_exception_that_is_not_raised_fails_a_canary(seed: int) -> None:
    found = [*canaries(IDS[2:3], seed).values()]
    unmet = rf"    with pytest.raises\(ValueError\):\n        {SUM}"
    assert sum(ends(one, unmet) for one in found) == 1
    assert all(one.startswith("async def") for one in found)


def test_a_canary_expects_more_where_the_test_expects_no_literal() -> None:
    source = "def test_a():\n    x = f(1)\n    assert x == str(\n        1)\n"
    with_them, names = with_canaries(source, ["t.py::test_a"], Random(0))
    ends = [ast.unparse(functions(with_them)[name].body[-1]) for name in names]
    assert sum(re.fullmatch(r"assert x == \[str\(1\), \d\]", end) is not None for end in ends) == 1


def test_a_test_that_may_return_early_has_only_a_canary_that_fails_first() -> None:
    [canary] = canaries(IDS[3:4]).values()
    assert re.match(FIRST, canary)


def test_a_canary_is_like_its_test() -> None:
    [name, *_] = canaries(IDS[:1])
    with_it, _ = with_canaries(SOURCE, IDS[:1], Random(0))
    canary, original = functions(with_it)[name], functions(with_it)["test_plain"]
    assert [ast.dump(one) for one in canary.body[1:]] == [ast.dump(one) for one in original.body]
    assert ast.dump(canary.args) == ast.dump(original.args)
    assert len(canary.decorator_list) == len(original.decorator_list)
    assert "canary" not in with_it


@pytest.mark.parametrize("ids", [IDS[4:], ["t.py::Inherited::test_method"]])
def test_a_test_that_cannot_be_copied_gets_a_canary_too(ids: list[str]) -> None:
    [canary] = canaries(ids).values()
    assert re.fullmatch(r"def test_\w+\(\):\n    assert \d == \d+", canary)


def test_files_for_other_python_versions_get_a_canary_too() -> None:
    with_it, [name] = with_canaries("print 'x'\n", ["t.py::test_x"], Random(0))
    assert with_it.startswith("print 'x'\n")
    assert re.search(rf"def {name}\(\):\n    assert \d == \d+\n$", with_it)


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


@pytest.mark.parametrize("seed", range(10))
def test_calls_on_several_lines_are_copied_as_one(seed: int) -> None:
    source, names = with_canaries(CHAINED, ["t.py::test_chaining"], Random(seed))
    assert set(names) < set(functions(source))
    assert "object()" in source
