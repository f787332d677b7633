"""One name, one class; and few callbacks in constructors: by the syntax of the packages' code.

Both lists may only shrink: a new duplicate fails, and so does one that is gone and still listed.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHARED = Path(__file__).with_name("shared_names.txt")
"""Names of several classes, one a line, with their number."""
MOST_CALLBACKS = 40
"""Number of callables that constructors take; where several travel together, a protocol is
clearer."""


def nodes() -> Iterator[ast.AST]:
    for package in ("prorl_service", "plugins"):
        for file in (ROOT / package).rglob("*.py"):
            yield from ast.walk(ast.parse(file.read_text(encoding="utf-8")))


def callbacks(node: ast.AST) -> int:
    if not isinstance(node, ast.FunctionDef) or node.name != "__init__":
        return 0
    arguments = [*node.args.args, *node.args.kwonlyargs]
    annotations = [ast.unparse(one.annotation) for one in arguments if one.annotation is not None]
    return sum("Callable" in one for one in annotations)


def test_classes_share_no_names_but_the_listed_ones() -> None:
    names = Counter(node.name.lstrip("_") for node in nodes() if isinstance(node, ast.ClassDef))
    shared = sorted(f"{name} {number}" for name, number in names.items() if number > 1)
    assert shared == SHARED.read_text().splitlines()


def test_constructors_take_few_callbacks() -> None:
    assert sum(map(callbacks, nodes())) == MOST_CALLBACKS
