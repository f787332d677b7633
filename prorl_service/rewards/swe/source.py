"""A Python file of tests as text and as a tree: finds tests, and makes changes. Pure."""

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Function = ast.FunctionDef | ast.AsyncFunctionDef
Edit = tuple[int, int, str]
"""Start and end in the file's text, and the text to put there."""

LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
"""A line as Python counts them: `str.splitlines` splits at more characters."""


@dataclass(frozen=True, slots=True)
class Source:
    text: str
    tree: ast.Module
    lines: Sequence[str]
    starts: Sequence[int]
    """Offset of each line, and of the end."""

    @classmethod
    def parsed(cls, text: str) -> "Source | None":
        """Parses a file; None if this version of Python cannot read it."""
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            return None
        lines, starts = LINE.findall(text), [0]
        for line in lines:
            starts.append(starts[-1] + len(line))
        return cls(text, tree, lines, starts)

    def find(self, names: Sequence[str]) -> Function | None:
        """Returns the last test of that name in these classes, or None."""
        node: ast.AST | None = self.tree
        for name in names:
            found = [
                child
                for child in getattr(node, "body", [])
                if isinstance(child, ast.ClassDef | Function) and child.name == name
            ]
            node = found[-1] if found else None
        return node if isinstance(node, Function) else None

    def at(self, line: int, column: int) -> int:
        """Returns the offset of a position of `ast`, whose columns count bytes of UTF-8."""
        before = self.lines[line - 1].encode()[:column].decode()
        return self.starts[line - 1] + len(before)

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        begin = self.at(node.lineno, node.col_offset)
        return begin, self.at(node.end_lineno, node.end_col_offset)

    def segment(self, node: ast.expr | ast.stmt) -> str:
        begin, end = self.span(node)
        return self.text[begin:end]

    def begin(self, node: Function | ast.stmt) -> int:
        """Returns the offset of the line in which a statement, or its first decorator, begins."""
        decorators: list[ast.expr] = getattr(node, "decorator_list", [])
        return self.starts[min([node.lineno, *(one.lineno for one in decorators)]) - 1]

    def end(self, node: Function) -> int:
        """Returns the offset after the line in which a function ends."""
        assert node.end_lineno is not None
        return self.starts[node.end_lineno]

    def indentation(self, node: ast.stmt) -> str:
        line = self.lines[node.lineno - 1]
        return line[: len(line) - len(line.lstrip())]

    def has_lines(self, test: Function) -> bool:
        """Returns whether the test's body has lines of its own."""
        begin = self.begin(test.body[0])
        before = self.text[begin : self.span(test.body[0])[0]].strip(" \t\f")
        return not before or before.startswith("@")

    def edited(self, edits: Iterable[Edit]) -> str:
        text = self.text
        for first, last, new in sorted(edits, reverse=True):
            text = text[:first] + new + text[last:]
        return text
