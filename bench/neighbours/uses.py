"""What our source uses of other packages: names that it imports, how it calls them, what it
overrides. Read from the source: nothing is imported."""

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

Signature = ast.FunctionDef | ast.AsyncFunctionDef


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

    @property
    def package(self) -> str:
        return self.name.partition(":")[0].partition(".")[0]


def uses(roots: Collection[Path], packages: Collection[str], top: Path) -> Iterator[Use]:
    """Yields what the files below `roots` use of `packages`; files are named relative to `top`."""
    for root in roots:
        for file in sorted(root.rglob("*.py")):
            yield from _in_file(file, packages, f"{file.relative_to(top)}")


def _in_file(file: Path, packages: Collection[str], shown: str) -> Iterator[Use]:
    tree = ast.parse(file.read_text())
    known: dict[str, Use] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or node.level or not node.module:
            continue
        if node.module.partition(".")[0] in packages:
            for alias in node.names:
                use = Use(f"{node.module}:{alias.name}", shown)
                known[alias.asname or alias.name] = use
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if (used := known.get(node.func.id)) is not None:
                used.calls.append(_call(node))
        elif isinstance(node, ast.ClassDef):
            for base in node.bases:
                name = base.value if isinstance(base, ast.Subscript) else base
                if isinstance(name, ast.Name) and name.id in known:
                    known[name.id].subclasses.append(node)
    yield from known.values()


def _call(node: ast.Call) -> Call:
    is_open = any(isinstance(one, ast.Starred) for one in node.args)
    is_open = is_open or any(one.arg is None for one in node.keywords)
    keywords = tuple(one.arg for one in node.keywords if one.arg is not None)
    return Call(node.lineno, len(node.args), keywords, is_open)


def class_in(top: Path, name: str) -> ast.ClassDef:
    """Returns a class of ours, named as `file:Class`. Raises `KeyError`."""
    file, _, wanted = name.partition(":")
    for node in ast.walk(ast.parse((top / file).read_text())):
        if isinstance(node, ast.ClassDef) and node.name == wanted:
            return node
    raise KeyError(name)
