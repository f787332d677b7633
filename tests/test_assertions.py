"""No test passes without an assertion: by the syntax of all tests, none of which is run."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
OF_LIBRARIES = frozenset({"raises", "warns", "fail", "expect", "wait_for_function"})
"""Calls of pytest and Playwright that fail a test."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions() -> Iterator[tuple[str, Function]]:
    """Yields all functions of the tests, with their files."""
    for file in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, Function):
                yield str(file.relative_to(ROOT)), node


def asserts(body: list[ast.stmt], asserting: set[str]) -> bool:
    """Returns whether statements assert, whichever branch is taken. `asserting`: the names of
    functions that do. The body of a loop counts."""
    return any(_asserts(one, asserting) for one in body)


def _asserts(one: ast.stmt, asserting: set[str]) -> bool:
    match one:
        case ast.Assert() | ast.Raise():
            return True
        case ast.If():
            return asserts(one.body, asserting) and asserts(one.orelse, asserting)
        case ast.Match():
            return all(asserts(case.body, asserting) for case in one.cases)
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return False
    inner = getattr(one, "body", []) + getattr(one, "finalbody", [])
    expressions = [node for node in ast.iter_child_nodes(one) if not isinstance(node, ast.stmt)]
    calls = (node for child in expressions for node in ast.walk(child))
    return asserts(inner, asserting) or any(_name(one) in asserting for one in calls)


def _name(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    called = node.func
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")


def returns_early(body: list[ast.stmt], asserting: set[str]) -> bool:
    """Returns whether statements may return before they assert."""
    for number, one in enumerate(body):
        if asserts(body[:number], asserting):
            return False
        inner = [one.body for one in getattr(one, "handlers", [])]
        inner += [getattr(one, name, []) for name in ("body", "orelse")]
        if isinstance(one, Function | ast.ClassDef):
            continue
        if isinstance(one, ast.Return) or any(returns_early(part, asserting) for part in inner):
            return True
    return False


@pytest.mark.slow
def test_no_test_passes_without_an_assertion() -> None:
    known, asserting = list(functions()), {*OF_LIBRARIES}
    before = 0
    while len(asserting) > before:  # helpers call helpers
        before = len(asserting)
        asserting |= {one.name for _, one in known if asserts(one.body, asserting)}
    without = [
        f"{file}::{one.name}"
        for file, one in known
        if one.name.startswith("test_")
        and (returns_early(one.body, asserting) or not asserts(one.body, asserting))
    ]
    assert without == []
