"""All that we hook into of one neighbour: what the table names, and what our source shows."""

import ast
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from prorl_service.neighbours import Neighbour
from scripts.neighbour_check import compare
from scripts.neighbour_check.sources import Sources, names_of
from scripts.neighbour_check.uses import Use, definition, uses

DIRECTORIES = ("prorl_service", "plugins")
Hook = Callable[[Sources], Iterator[str]]
"""Yields what is broken of one name, route or class."""


def hooks(one: Neighbour, ours: Path) -> list[Hook]:
    """Returns those of the checkout `ours`, to be tried on the source of any release."""
    found: list[Hook] = [partial(compare.used, use) for use in uses(ours, DIRECTORIES, one.modules)]
    found += [partial(_imitated, theirs, mine, ours) for mine, theirs in one.stand_ins.items()]
    found += [partial(compare.takes, name, taken) for name, taken in one.calls.items()]
    found += [partial(compare.has, name, fields) for name, fields in one.fields.items()]
    found += [
        partial(compare.reads, name, read)
        for functions in one.reads.values()
        for name, read in functions.items()
    ]
    found += [
        partial(compare.answers, package, path)
        for package, paths in one.routes.items()
        for path in paths
    ]
    found += [
        partial(_takes_option, command, option)
        for name, command in one.options.items()
        for option in _options(definition(ours, name))
    ]
    found += [partial(_has_ours, name, fields, ours) for name, fields in one.ours.items()]
    return found


def _imitated(theirs: str, name: str, ours: Path, sources: Sources) -> Iterator[str]:
    mine = definition(ours, name)
    if not isinstance(mine, ast.ClassDef):
        yield f"{name} of ours is gone"
    else:
        yield from compare.used(Use(theirs, name, subclasses=[mine]), sources)


def _options(mine: ast.AST | None) -> list[str]:
    constants = (one for one in ast.walk(mine) if isinstance(one, ast.Constant)) if mine else ()
    return [str(one.value) for one in constants if str(one.value).startswith("--")]


def _takes_option(command: list[str], option: str, _: Sources) -> Iterator[str]:
    """Asks the installed program: some options are not in its help."""
    asked = [*command, f"{option}=x", "--help"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if "unknown flag" in done.stderr:
        yield f"{' '.join(command)} knows no {option}"


def _has_ours(name: str, fields: list[str], ours: Path, _: Sources) -> Iterator[str]:
    mine = definition(ours, name)
    body = mine.body if isinstance(mine, ast.ClassDef | ast.Module) else []
    own = {one for node in body for one in names_of(node)}
    for field in fields:
        if field not in own:
            yield f"{name} of ours has no {field}"
