"""Ways and places to make a test fail. Pure.

A failure should look like one of the test's own: by the same kind of assertion, with names that the
test uses and small numbers.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from prorl_service.rewards.swe.source import Edit, Function, Source

NOT_THE_PACKAGE = sys.stdlib_module_names | {"pytest", "_pytest", "hypothesis", "test", "tests"}
EQUALITIES = frozenset(
    f"assert{what}"
    for what in (
        *("Equal", "Equals", "ListEqual", "TupleEqual", "DictEqual", "SetEqual"),
        *("SequenceEqual", "MultiLineEqual"),
    )
)


MOST_CALLS = 3

IN_THE_MIDDLE = "in the middle"
"""Way to fail of an assertion of the test's own."""


class Way(StrEnum):
    ASSERT = "assert"
    UNITTEST = "unittest"
    RAISES = "raises"
    UNITTEST_RAISES = "unittest raises"


def ways_to_fail(test: Function) -> list[Way]:
    """Returns the ways in which the test's own assertions can fail; `ASSERT` if it has none."""
    found = set()
    for node in ast.walk(test):
        if isinstance(node, ast.Assert):
            found.add(Way.ASSERT)
        elif isinstance(node, ast.Call) and (method := _method_of_self(node)):
            if method.startswith(("assertRaises", "assertWarns")):
                found.add(Way.UNITTEST_RAISES)
            elif method.startswith("assert"):
                found.add(Way.UNITTEST)
        elif isinstance(node, ast.Call) and _is_raises(node):
            found.add(Way.RAISES)
    return sorted(found) or [Way.ASSERT]


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes changes that make a test fail."""

    source: Source
    random: Random

    def runs_to_its_end(self, test: Function) -> bool:
        """Returns whether the test reaches its last line unless something is raised."""
        leaving = ast.Return | ast.Yield | ast.YieldFrom
        return not any(isinstance(node, leaving) for node in _own(test))

    def failures(self, test: Function, *, in_the_middle: bool) -> dict[str, list[Edit]]:
        """Returns the changes by their way to fail: immediately, after the last line in each of the
        ways in which the test itself can fail, where code of the package raises, and in one of the
        test's own assertions, if it may fail in the middle and leave there what it has set up."""
        if not self.source.has_lines(test):
            begin, end = self.source.span(test.body[0])[0], self.source.span(test.body[-1])[1]
            return {"first": [(begin, end, self._failing(test, Way.ASSERT, [])[0])]}
        ways = ways_to_fail(test)
        found = {"first": self.first(test, self.random.choice(ways))}
        if self.runs_to_its_end(test):
            found |= {way: self.last(test, way) for way in ways}
            found["package"] = self.of_the_package(test)
            if in_the_middle:
                own = [edits for way in ways if (edits := self.changed(test, way))]
                found[IN_THE_MIDDLE] = self.random.choice(own) if own else []
        return {way: edits for way, edits in found.items() if edits}

    def first(self, test: Function, way: Way) -> list[Edit]:
        lines = self._failing(test, way, self._names(test))
        is_described = ast.get_docstring(test, clean=False) is not None
        if is_described and len(test.body) == 1:
            return self._appended(test, lines)
        at = self.source.begin(test.body[int(is_described)])
        return [(at, at, self._lines(test, lines))]

    def last(self, test: Function, way: Way) -> list[Edit]:
        names = [*self._names(test), *self._locals(test)]
        return self._appended(test, self._failing(test, way, names))

    def changed(self, test: Function, way: Way) -> list[Edit]:
        """Makes one of the test's assertions expect something else. Empty if the test has no
        comparison for equality that is certainly reached."""
        compared = [sides for one in test.body if (sides := _compared(one, way))]
        values = [
            constant
            for sides in compared
            if len(literals := [side for side in sides if _is_literal(side)]) == 1
            for constant in _constants(literals[0])
        ]
        if values:
            value = self.random.choice(values)
            edit = (*self.source.span(value), repr(self._other(value.value)))
            return [edit]
        unknown = [sides[1] for sides in compared if not any(map(_is_literal, sides))]
        if not unknown:
            return []
        side = self.random.choice(unknown)
        more = f"[{self.source.segment(side)}, {self.random.randint(1, 9)}]"
        return [(*self.source.span(side), more)]

    def of_the_package(self, test: Function) -> list[Edit]:
        """Repeats calls of the test with an argument that is useless to the package. If it accepts
        that, an assertion fails. Empty if the test has no such calls."""
        calls = list(self._calls(test)) if isinstance(test, ast.FunctionDef) else []
        if not calls:
            return []
        chosen = self.random.sample(calls, min(len(calls), MOST_CALLS))
        backstop = self._failing(test, Way.ASSERT, self._names(test))
        return self._appended(test, [*map(self._spoilt, chosen), *backstop])

    def _spoilt(self, call: ast.Call) -> str:
        """Returns a chain of calls, with another argument for the first that has one. In brackets,
        as it may span several lines."""
        argument = next(one.args[0] for one in reversed(_chain(call)) if one.args)
        (begin, end), (first, last) = self.source.span(call), self.source.span(argument)
        return f"({self.source.text[begin:first]}object(){self.source.text[last:end]})"

    def _failing(self, test: Function, way: Way, names: list[str]) -> list[str]:
        """Returns the lines of a statement that fails by this kind of assertion only."""
        count, more = self.random.randint(2, 6), self.random.randint(1, 9)
        name = self.random.choice(names) if names else str(self.random.randint(1, 9))
        value = f"len([{name}] * {count})"
        if way is Way.ASSERT:
            return [f"assert {value} == {count + more}"]
        if way is Way.UNITTEST:
            return [f"self.assertEqual({value}, {count + more})"]
        calls = (node for node in ast.walk(test) if isinstance(node, ast.Call) and _is_raises(node))
        raises = "self.assertRaises"
        if way is Way.RAISES:
            raises = self.source.segment(next(calls).func)
        return [f"with {raises}(ValueError):", f"    {value}"]

    def _appended(self, test: Function, lines: list[str]) -> list[Edit]:
        at = self.source.end(test)
        gap = "" if self.source.text[:at].endswith(("\n", "\r")) else "\n"
        return [(at, at, gap + self._lines(test, lines))]

    def _lines(self, test: Function, lines: list[str]) -> str:
        indentation = self.source.indentation(test.body[0])
        return "".join(f"{indentation}{line}\n" for line in lines)

    def _names(self, test: Function) -> list[str]:
        """Returns parameters, and names of the module that the test uses."""
        parameters = [one.arg for one in test.args.args if one.arg not in ("self", "cls")]
        known = set(self._imported()) | {
            node.name for node in self.source.tree.body if isinstance(node, ast.ClassDef | Function)
        }
        used = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
        return [*parameters, *sorted(known & used)]

    def _locals(self, test: Function) -> list[str]:
        """Returns names that have a value at the end."""
        return [
            target.id
            for statement in test.body
            if isinstance(statement, ast.Assign)
            for target in statement.targets
            if isinstance(target, ast.Name)
        ]

    def _imported(self) -> dict[str, str]:
        """Returns names that the module imports, each with its package."""
        found = {}
        for node in self.source.tree.body:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    package = alias.name.partition(".")[0]
                    found[alias.asname or package] = package
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                package = node.module.partition(".")[0]
                found |= {alias.asname or alias.name: package for alias in node.names}
        return found

    def _calls(self, test: Function) -> Iterator[ast.Call]:
        """Yields calls of the package, or of what such a call returned."""
        roots = {name for name, of in self._imported().items() if of not in NOT_THE_PACKAGE}
        for statement in test.body:
            if isinstance(statement, ast.Assign) and _root(statement.value) in roots:
                names = [one.id for one in statement.targets if isinstance(one, ast.Name)]
                roots.update(names)
        inner: set[ast.AST] = set()
        for node in _own(test):
            if not isinstance(node, ast.Call) or node in inner or _root(node) not in roots:
                continue
            inner.update(_chain(node))
            arguments = [one.args[0] for one in _chain(node) if one.args]
            if arguments and not any(isinstance(one, ast.Starred) for one in arguments):
                yield node

    def _other(self, value: object) -> object:
        if isinstance(value, str):
            return value + self.random.choice([" ", "s", "0", "."])
        if isinstance(value, bytes):
            return value + b"0"
        assert isinstance(value, int | float)
        return value + self.random.randint(2, 9)


def _own(test: Function) -> Iterator[ast.AST]:
    """Yields nodes that run as part of the test itself, not of an inner function, class or
    comprehension, whose names are unknown at the test's end."""
    inner = ast.Lambda | Function | ast.ClassDef | ast.ListComp | ast.SetComp | ast.DictComp
    ahead: list[ast.AST] = list(reversed(test.body))
    while ahead:
        node = ahead.pop()
        if not isinstance(node, inner | ast.GeneratorExp):
            yield node
            ahead.extend(reversed(list(ast.iter_child_nodes(node))))


def _compared(statement: ast.stmt, way: Way) -> list[ast.expr]:
    """Returns the two sides that a statement asserts to be equal; empty for other statements."""
    if way is Way.ASSERT and isinstance(statement, ast.Assert):
        compared = statement.test
        if isinstance(compared, ast.Compare) and [*map(type, compared.ops)] == [ast.Eq]:
            return [compared.left, compared.comparators[0]]
    elif way is Way.UNITTEST and isinstance(statement, ast.Expr):
        call = statement.value
        if isinstance(call, ast.Call) and _method_of_self(call) in EQUALITIES:
            sides = call.args[:2]
            return sides if len(sides) == 2 and not isinstance(sides[1], ast.Starred) else []
    return []


def _is_literal(node: ast.expr) -> bool:
    displays = ast.List | ast.Tuple | ast.Set | ast.Dict | ast.UnaryOp | ast.Constant
    parts = (child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))
    return isinstance(node, displays) and all(map(_is_literal, parts))


def _constants(literal: ast.expr) -> Iterator[ast.Constant]:
    for node in ast.walk(literal):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float, str, bytes):
            yield node


def _method_of_self(call: ast.Call) -> str:
    """Returns the method's name; empty for other calls."""
    method = call.func
    if isinstance(method, ast.Attribute) and isinstance(method.value, ast.Name):
        return method.attr if method.value.id == "self" else ""
    return ""


def _is_raises(call: ast.Call) -> bool:
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name == "raises"


def _chain(call: ast.Call) -> list[ast.Call]:
    """Returns the calls of a chain, the last one first: `a(x).b(y)` and `a(x)`."""
    found, node = [], call.func
    while isinstance(node, ast.Attribute | ast.Call):
        if isinstance(node, ast.Call):
            found.append(node)
            node = node.func
        else:
            node = node.value
    return [call, *found]


def _root(node: ast.expr) -> str:
    """Returns the name that a chain of attributes and calls begins with."""
    while isinstance(node, ast.Attribute | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""
