"""What our source uses of other packages: names that it imports, how it calls them, what it
overrides. Read from the source: nothing is imported."""

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from scripts.neighbour_check.sources import names_of


@dataclass(frozen=True, slots=True)
class Call:
    """Call of a name that was imported."""

    line: int
    positional: int
    keywords: tuple[str, ...]
    is_open: bool
    """Whether it has `*arguments` or `**options`, whose names are unknown here."""


@dataclass(slots=True)
class Use:
    """One name of another package, in one file of ours."""

    name: str
    """Name as `module:name`."""
    file: str
    calls: list[Call] = field(default_factory=list)
    subclasses: list[ast.ClassDef] = field(default_factory=list)
    """Our classes that derive from it."""


def uses(ours: Path, directories: Collection[str], packages: Collection[str]) -> Iterator[Use]:
    """Yields what the files in `directories` of our checkout use of `packages`."""
    for directory in directories:
        for file in sorted((ours / directory).rglob("*.py")):
            text = file.read_text(encoding="utf-8")
            yield from in_text(text, packages, str(file.relative_to(ours)))


def in_text(text: str, packages: Collection[str], shown: str) -> Iterator[Use]:
    """Yields what a file of Python uses, which is `shown` as that."""
    if not any(one in text for one in packages):
        return
    tree = ast.parse(text)
    known: dict[str, Use] = {}
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {one.name for one in node.names if one.name in packages and not one.asname}
        elif isinstance(node, ast.ImportFrom) and _is_of(node, packages):
            for alias in node.names:
                known[alias.asname or alias.name] = Use(f"{node.module}:{alias.name}", shown)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module in modules:
                known.setdefault(f"{module}.{name}", Use(f"{module}:{name}", shown))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (used := known.get(_dotted(node.func))) is not None:
            used.calls.append(_call(node))
        elif isinstance(node, ast.ClassDef):
            for base in node.bases:
                if (used := known.get(_dotted(base))) is not None:
                    used.subclasses.append(node)
    yield from known.values()


def _is_of(node: ast.ImportFrom, packages: Collection[str]) -> bool:
    return not node.level and (node.module or "").partition(".")[0] in packages


def _dotted(node: ast.expr) -> str:
    return ast.unparse(node.value if isinstance(node, ast.Subscript) else node)


def _call(node: ast.Call) -> Call:
    is_open = any(isinstance(one, ast.Starred) for one in node.args)
    is_open = is_open or any(one.arg is None for one in node.keywords)
    keywords = tuple(one.arg for one in node.keywords if one.arg is not None)
    return Call(node.lineno, len(node.args), keywords, is_open)


def definition(ours: Path, name: str) -> ast.ClassDef | ast.Assign | ast.Module | None:
    """Returns a file of ours, or a class or constant in it, named as `file:Name`; None if there is
    none."""
    file, _, wanted = name.partition(":")
    if not (ours / file).is_file():
        return None
    module = ast.parse((ours / file).read_text(encoding="utf-8"))
    if not wanted:
        return module
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef | ast.Assign) and wanted in names_of(node):
            return node
    return None
