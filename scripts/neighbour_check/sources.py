"""Definitions in the source of a package that is unpacked but not installed."""

import ast
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Sources:
    """Source below `root`, which has packages as site-packages has."""

    root: Path

    def has_module(self, module: str) -> bool:
        return _file_of(self.root, module) is not None

    def find(self, name: str, depth: int = 8) -> "Found | None":
        """Returns the definition of `module:qualified.name`, followed through re-exports; None if
        there is none."""
        module, _, qualified = name.partition(":")
        first, _, rest = qualified.partition(".")
        found = self._top(module, first, depth)
        for part in rest.split(".") if rest and found else ():
            found = self.member(found, part) if found else None
        return found

    def member(self, owner: "Found", name: str) -> "Found | None":
        """Returns a class's attribute, its bases' included."""
        if not isinstance(owner.node, ast.ClassDef):
            return None
        for node in owner.node.body:
            if name in names_of(node):
                return Found(owner.module, node)
        for base in self.bases(owner):
            if (found := self.member(base, name)) is not None:
                return found
        return None

    def bases(self, owner: "Found") -> "list[Found]":
        """Returns the base classes whose source is here."""
        assert isinstance(owner.node, ast.ClassDef)
        names = [one.value if isinstance(one, ast.Subscript) else one for one in owner.node.bases]
        found = [self._top(owner.module, one.id, 8) for one in names if isinstance(one, ast.Name)]
        return [one for one in found if one and isinstance(one.node, ast.ClassDef)]

    def texts(self, package: str) -> set[str]:
        """Returns all string constants in a package."""
        return _texts(self.root.joinpath(*package.split(".")))

    def _top(self, module: str, name: str, depth: int) -> "Found | None":
        file = _file_of(self.root, module)
        if file is None or depth == 0:
            return None
        if self.has_module(f"{module}.{name}"):
            return Found(f"{module}.{name}", ast.Module([], []))
        if not _may_have(file, name):
            return None
        definitions, imports = _indexed(file)
        if name in definitions:
            return Found(module, definitions[name])
        sources = (self._imported(module, file, node, name, depth) for node in imports)
        return next(filter(None, sources), None)

    def _imported(
        self, module: str, file: Path, node: ast.ImportFrom, name: str, depth: int
    ) -> "Found | None":
        parts = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
        above = parts[: len(parts) - node.level + 1] if node.level else []
        source = ".".join([*above, *([node.module] if node.module else [])])
        for alias in node.names:
            if alias.name == "*" or (alias.asname or alias.name) == name:
                wanted = name if alias.name == "*" else alias.name
                if (found := self._top(source, wanted, depth - 1)) is not None:
                    return found
        return None


@dataclass(frozen=True, slots=True)
class Found:
    module: str
    node: ast.AST = field(repr=False)


def _may_have(file: Path, name: str) -> bool:
    """Returns False, in far less time than a parser takes, for a file that cannot have the name."""
    text = _text(file)
    return name in text or "import *" in text


@cache
def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace")


@cache
def _indexed(file: Path) -> tuple[dict[str, ast.AST], list[ast.ImportFrom]]:
    """Returns the definitions by name, the first of each, and the imports."""
    definitions: dict[str, ast.AST] = {}
    imports: list[ast.ImportFrom] = []
    for node in ast.walk(_parsed(file)):
        for name in names_of(node):
            definitions.setdefault(name, node)
        if isinstance(node, ast.ImportFrom):
            imports.append(node)
    return definitions, imports


@cache
def _parsed(file: Path) -> ast.Module:
    return ast.parse(_text(file))


@cache
def _texts(directory: Path) -> set[str]:
    return {
        node.value
        for file in directory.rglob("*.py")
        for node in ast.walk(_parsed(file))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


@cache
def _file_of(root: Path, module: str) -> Path | None:
    path = root.joinpath(*module.split("."))
    for file in (path / "__init__.py", path.with_suffix(".py")):
        if file.is_file():
            return file
    return None


def names_of(node: ast.AST) -> set[str]:
    """Returns the names that a statement defines."""
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return {node.name}
        case ast.Assign():
            return {one.id for one in node.targets if isinstance(one, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
    return set()
