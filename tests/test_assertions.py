"""No test passes without an assertion: a look at the syntax of all tests, which runs none of them."""

import ast
from collections.abc import Iterator
from pathlib import Path

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


def test_every_test_asserts_in_each_branch() -> None:
    known, asserting = list(functions()), {*OF_LIBRARIES}
    before = 0
    while len(asserting) > before:  # helpers call helpers
        before = len(asserting)
        asserting |= {one.name for _, one in known if asserts(one.body, asserting)}
    without = [
        f"{file}::{one.name}"
        for file, one in known
        if one.name.startswith("test_") and not asserts(one.body, asserting)
    ]
    assert without == []


def test_no_test_returns_before_its_assertions() -> None:
    returning = [
        f"{file}::{one.name}"
        for file, one in functions()
        if one.name.startswith("test_")
        and any(isinstance(node, ast.Return) and node.value is None for node in ast.walk(one))
    ]
    assert returning == []
