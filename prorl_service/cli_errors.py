"""Known errors of the `prorl` commands become one line and what to do; others stay tracebacks."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from pydantic import ValidationError

from prorl_service.errors import ProRLError


@contextmanager
def one_line_errors() -> Iterator[None]:
    try:
        yield
    except (ProRLError, ValidationError) as error:
        typer.echo(f"prorl: {error}", err=True)
        hint = getattr(error, "hint", "")
        if hint:
            typer.echo(f"  {hint}", err=True)
        raise typer.Exit(2) from None
