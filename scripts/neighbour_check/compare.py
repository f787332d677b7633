"""Whether what we use of a package is in the source of some release of it. Each check yields what
is broken."""

import ast
from collections.abc import Iterator, Sequence

from scripts.neighbour_check.sources import Found, Sources, names_of
from scripts.neighbour_check.uses import Call, Use

Function = ast.FunctionDef | ast.AsyncFunctionDef
KINDS = ("staticmethod", "classmethod", "property", "cached_property")


def used(use: Use, sources: Sources) -> Iterator[str]:
    """Compares an imported name: whether it is there, the arguments of its calls, the methods of
    classes of ours that derive from it."""
    found = sources.find(use.name)
    if found is None:
        yield f"{use.name} is gone ({use.file})"
        return
    for call in use.calls:
        for problem in _of_call(found, call, sources):
            yield f"{use.name}: {problem} ({use.file}:{call.line})"
    for ours in use.subclasses:
        for problem in _of_class(found, ours, sources):
            yield f"{use.name}: {problem} ({use.file}, {ours.name})"


def takes(name: str, parameters: Sequence[str], sources: Sources) -> Iterator[str]:
    """Compares the parameters of a function that we call or replace without importing it."""
    found = sources.find(name)
    if found is None:
        yield f"{name} is gone"
    elif isinstance(found.node, Function):
        known = [one.arg for one in ast.walk(found.node.args) if isinstance(one, ast.arg)]
        yield from (f"{name} takes no {one}" for one in parameters if one not in known)


def has(name: str, fields: Sequence[str], sources: Sources) -> Iterator[str]:
    found = sources.find(name)
    if found is None:
        yield f"{name} is gone"
        return
    made = sources.member(found, "__init__")
    given = _parameters(made.node)[0] if made and isinstance(made.node, Function) else []
    for field in fields:
        if field not in given and sources.member(found, field) is None:
            yield f"{name} has no {field}"


def reads(name: str, identifiers: Sequence[str], sources: Sources) -> Iterator[str]:
    found = sources.find(name)
    if found is None:
        yield f"{name} is gone"
        return
    nodes = list(ast.walk(found.node))
    read = {one.attr for one in nodes if isinstance(one, ast.Attribute)}
    read |= {one.id for one in nodes if isinstance(one, ast.Name)}
    yield from (f"{name} no longer reads {one}" for one in identifiers if one not in read)


def answers(package: str, path: str, sources: Sources) -> Iterator[str]:
    if path not in sources.texts(package):
        yield f"{package} has no {path}"


def _of_call(found: Found, call: Call, sources: Sources) -> Iterator[str]:
    function = _called(found, sources)
    if function is None or function.args.kwarg:
        return
    taken, needed = _parameters(function)
    if isinstance(found.node, ast.ClassDef):
        taken, needed = taken[1:], needed - {"self"}
    for keyword in call.keywords:
        if keyword not in taken:
            yield f"takes no {keyword}"
    given = {*taken[: call.positional], *call.keywords}
    for name in sorted(needed - given if not call.is_open else ()):
        yield f"needs {name}"


def _called(found: Found, sources: Sources) -> Function | None:
    if isinstance(found.node, ast.ClassDef):
        made = sources.member(found, "__init__")
        return made.node if made and isinstance(made.node, ast.FunctionDef) else None
    function = found.node
    # A decorator may give arguments itself, as Hydra's does.
    is_plain = isinstance(function, Function) and not function.decorator_list
    return function if isinstance(function, Function) and is_plain else None


def _of_class(found: Found, ours: ast.ClassDef, sources: Sources) -> Iterator[str]:
    methods = {one.name: one for one in _methods(ours)}
    for name, method in methods.items():
        theirs = sources.member(found, name)
        if theirs is not None and isinstance(theirs.node, Function):
            yield from _of_override(theirs.node, method)
    for name in _abstract(found, sources) - {name for one in ours.body for name in names_of(one)}:
        yield f"{name} is to be implemented"


def _of_override(theirs: Function, ours: Function) -> Iterator[str]:
    if _kind(theirs) != _kind(ours):
        yield f"{ours.name} is {_kind(theirs) or 'a method'}, ours {_kind(ours) or 'a method'}"
    taken, _ = _parameters(ours)
    for name in _parameters(theirs)[0][1:]:
        if name not in taken and not ours.args.kwarg:
            yield f"{ours.name} is given {name}, which ours does not take"
    known = _parameters(theirs)[0]
    for name in sorted(_parameters(ours)[1] - {*known, "self", "cls"}):
        if not (theirs.args.kwarg or theirs.args.vararg):
            yield f"{ours.name} of ours needs {name}, which is not given"


def _abstract(found: Found, sources: Sources) -> set[str]:
    assert isinstance(found.node, ast.ClassDef)
    inherited: set[str] = set()
    for base in sources.bases(found):
        inherited |= _abstract(base, sources)
    own = _methods(found.node)
    return inherited - {one.name for one in own} | {
        one.name for one in own if "abstractmethod" in _decorators(one)
    }


def _methods(owner: ast.ClassDef) -> list[Function]:
    return [one for one in owner.body if isinstance(one, Function)]


def _kind(function: Function) -> str:
    found = [one for one in KINDS if one in _decorators(function)]
    return "property" if "cached_property" in found else "".join(found)


def _decorators(function: Function) -> set[str]:
    return {ast.unparse(one).rpartition(".")[2] for one in function.decorator_list}


def _parameters(function: Function) -> tuple[list[str], set[str]]:
    """Returns all parameters in their order, and those without a default."""
    arguments = function.args
    placed = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
    required = {*placed[: len(placed) - len(arguments.defaults)]}
    for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        placed.append(one.arg)
        if default is None:
            required.add(one.arg)
    return placed, required
