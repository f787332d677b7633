"""Canaries: tests that must fail, put among those that a patch is to make pass.

A patch that makes the runner report success for anything reports it for them too. A canary is a
copy of a real test, under a name that could be one, which fails first thing: code that wants to
spare it has to tell it from the test beside it. Pure; works on the data set's own test files only.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from random import Random

Function = ast.FunctionDef | ast.AsyncFunctionDef


def with_canary(source: str, test_id: str, random: Random) -> tuple[str, str]:
    """The file with a canary, and the name of its function. `test_id`: a test of this file."""
    names = test_id.partition("[")[0].split("::")[1:]
    name = _new_name(source, names[-1], random)
    failing = f"assert {random.getrandbits(40):#x} == {random.getrandbits(40):#x}"
    copied = _copy(source, names, name, failing)
    if copied is None:
        copied = f"{source.rstrip()}\n\n\ndef {name}():\n    {failing}\n"
    return copied, name


def likely_tests(sources: Mapping[str, str], ids: Collection[str]) -> list[str]:
    """Tests of these files that ids of any runner can mean, as `file::Class::function`.

    Those of that class and name or description, else those of that name (which a class may have
    from another), else all: a canary can stand beside any test that is run.
    """
    words = [frozenset(re.findall(r"\w+", id_)) for id_ in ids]
    found: dict[int, list[str]] = defaultdict(list)
    for file, source in sources.items():
        for names, function in _tests(source):
            description = (ast.get_docstring(function) or "").partition("\n")[0]
            is_meant = description in ids or any(one.issuperset(names) for one in words)
            likeness = 2 if is_meant else int(any(names[-1] in one for one in words))
            found[likeness].append("::".join([file, *names]))
    return found[max(found, default=0)]


def _tests(source: str) -> Iterator[tuple[list[str], Function]]:
    try:
        body = ast.parse(source).body
    except SyntaxError:  # another version's
        return
    for node in body:
        names = [node.name] if isinstance(node, ast.ClassDef) else []
        for function in node.body if isinstance(node, ast.ClassDef) else [node]:
            if not isinstance(function, Function) or not function.name.startswith("test"):
                continue
            if function.body[0].lineno > function.lineno:  # else it cannot be copied
                yield [*names, function.name], function


def _new_name(source: str, name: str, random: Random) -> str:
    words = sorted(set(re.findall(r"[a-z]{3,}", " ".join(re.findall(r"def (test\w*)", source)))))
    while True:
        new = f"{name}_{random.choice([*words, 'again'])}_{random.choice([*words, 'twice'])}"
        if new not in source:
            return new


def _copy(source: str, names: list[str], new_name: str, failing: str) -> str | None:
    """None where the test is not a plain function of the file."""
    function = _find(source, names)
    if function is None or function.body[0].lineno <= function.lineno:
        return None
    first = min([function.lineno, *(line.lineno for line in function.decorator_list)])
    assert function.end_lineno is not None
    lines = source.splitlines(keepends=True)
    copy = lines[first - 1 : function.end_lineno]
    head = function.lineno - first
    copy[head] = re.sub(rf"\bdef {names[-1]}\b", f"def {new_name}", copy[head])
    body = function.body[0]
    decorators = getattr(body, "decorator_list", [])
    start = min([body.lineno, *(line.lineno for line in decorators)])
    copy.insert(start - first, f"{' ' * body.col_offset}{failing}\n")
    if not copy[-1].endswith("\n"):
        copy[-1] += "\n"
    return "".join([*lines[: first - 1], *copy, "\n", *lines[first - 1 :]])


def _find(source: str, names: list[str]) -> Function | None:
    try:
        node: ast.AST | None = ast.parse(source)
    except SyntaxError:  # another version's
        return None
    for name in names:
        found = [
            child
            for child in getattr(node, "body", [])
            if isinstance(child, ast.ClassDef | Function) and child.name == name
        ]
        node = found[-1] if found else None
    return node if isinstance(node, Function) else None
