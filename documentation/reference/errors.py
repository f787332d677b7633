"""`docs/reference/errors.md`: every error by its message, out of the places that raise it.

Reads the source: an error's message and hint are written where it is raised. What is filled in when
it is raised is shown as `…`.
"""

import ast
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from prorl_service import errors
from prorl_service.errors import ProRLError
from prorl_service.schemas import Blame

ROOT = Path(__file__).parents[2]
PACKAGES = ("prorl_service", "plugins")
INTRODUCTION = """\
# Errors by message

Every error that the service, its command and its plug-ins report, by its message. `…` stands for
what is filled in. Search this page for a part of the message that you have.
[Troubleshooting](../troubleshooting.md) explains the common ones.

**Blame** says whose fault it was. **Retried** means that the service itself tries the rollout
again, up to `--max-attempts` times. **Status** is that of the HTTP answer, if a request failed.
"""


@dataclass(frozen=True, slots=True, order=True)
class Message:
    kind: str
    text: str
    hint: str


@dataclass(frozen=True, slots=True)
class Kind:
    """A class of errors: its own docstring, and what its instances have unless they say more."""

    name: str
    base: str
    description: str


def page() -> str:
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in _files()}
    kinds = _kinds(trees.values())
    found = sorted({one for tree in trees.values() for one in _messages(tree, kinds)})
    parts = [INTRODUCTION]
    for name, kind in kinds.items():
        rows = [f"| {_cell(one.text)} | {_cell(one.hint)} |" for one in found if one.kind == name]
        if rows:
            parts += [
                f"\n## {name}\n",
                *_about(kind, kinds),
                "| message | what to do |",
                "|---|---|",
            ]
            parts += rows
    return "\n".join(parts) + "\n"


def _files() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def _kinds(trees: Iterable[ast.Module]) -> dict[str, Kind]:
    """Returns the classes of errors, those of `prorl_service.errors` first."""
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    own = {name for name, one in vars(errors).items() if _is_error(one)}
    found = {node.name: _kind(node) for node in classes if node.name in own}
    grown = True
    while grown:
        more = [node for node in classes if node.name not in found and _base(node) in found]
        found |= {node.name: _kind(node) for node in more}
        grown = bool(more)
    return dict(sorted(found.items(), key=lambda one: (one[0] not in own, one[0])))


def _is_error(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, ProRLError)


def _kind(node: ast.ClassDef) -> Kind:
    return Kind(node.name, _base(node), ast.get_docstring(node) or "")


def _base(node: ast.ClassDef) -> str:
    return next((base.id for base in node.bases if isinstance(base, ast.Name)), "")


def _about(kind: Kind, kinds: dict[str, Kind]) -> Iterator[str]:
    if kind.description:
        yield f"{kind.description}\n"
    known = kind
    while not hasattr(errors, known.name):
        known = kinds[known.base]
    one: type[ProRLError] = getattr(errors, known.name)
    retried = "yes" if one.retryable else "no"
    if isinstance(one.blame, Blame):
        yield f"Blame: {one.blame.value}. Retried: {retried}. Status: {one.status}.\n"


def _messages(tree: ast.AST, kinds: dict[str, Kind]) -> Iterator[Message]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name, is_of_field = _called(node.func)
        arguments = node.args[1:] if is_of_field else node.args
        if name in kinds and arguments:
            text = _text(arguments[0])
            if text.strip("… :"):
                field = f"{_text(node.args[0])}: " if is_of_field else ""
                hint = next((_text(one.value) for one in node.keywords if one.arg == "hint"), "")
                yield Message(name, field + text, "" if hint.strip("… ") == "" else hint)


def _called(function: ast.expr) -> tuple[str, bool]:
    """Returns the name of the class, and whether its `of_field` was called."""
    if isinstance(function, ast.Name):
        return function.id, False
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        is_of_field = function.attr == "of_field"
        return (function.value.id if is_of_field else function.attr), is_of_field
    return "", False


def _text(node: ast.expr) -> str:
    """Returns the text that an expression makes, with `…` for what is not written there."""
    match node:
        case ast.Constant(value=str(value)):
            return value
        case ast.JoinedStr(values=values):
            return "".join(map(_text, values))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left) + _text(right)
        case ast.IfExp(body=body, orelse=other):
            return _text(body) or _text(other)
    return "…"


def _cell(text: str) -> str:
    plain = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
    return plain.replace("_", "\\_") if "`" not in plain else plain
