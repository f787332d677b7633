"""Known errors of the `prorl` commands become one line and what to do; others stay tracebacks."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer
from pydantic import ValidationError

from prorl_service.errors import ProRLError


@contextmanager
def one_line_errors() -> Iterator[None]:
    try:
        yield
    except ProRLError as error:
        _end(error.message, error.hint)
    except ValidationError as error:
        _end(problems_of(error))


def problems_of(error: ValidationError) -> str:
    """The problems in one line, without values, which may be secret, or links to another
    project."""
    return "; ".join(
        f"{'.'.join(map(str, one['loc']))}: {one['msg'].removeprefix('Value error, ')}"
        for one in error.errors()
    )


def _end(problem: str, hint: str = "") -> NoReturn:
    typer.echo(f"prorl: {problem}", err=True)
    if hint and hint not in problem:
        typer.echo(f"  {hint}", err=True)
    raise typer.Exit(2) from None
