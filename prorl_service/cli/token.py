"""`prorl token`: the token of one's own services, and named ones for others."""

import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.table import Table

from prorl_service.cli.screen import Screen
from prorl_service.cli.wording import ago
from prorl_service.errors import ProRLError
from prorl_service.net.callers import Role, TokenFile
from prorl_service.net.credentials import TOKEN_VARIABLE, make_own_token, tokens_file

token = App(name="token", help="Print the token of your services, or manage named ones for others.")
File = Annotated[
    Path | None,
    Parameter(help="File of named tokens, as `prorl serve --tokens-file` has it (default: yours)."),
]


@token.default
def own() -> None:
    """Print the token of your services on this machine, for curl and for clients elsewhere."""
    print(os.environ.get(TOKEN_VARIABLE) or make_own_token())


@token.command
def add(name: str, /, *, role: Role = Role.SUBMIT, file: File = None) -> None:
    """Print a new token for somebody, once: only its digest is kept.

    Running services take it immediately. Its name is that of the submitter, for fairness, in the
    log and on the page.

    Parameters
    ----------
    role
        'read' looks, 'submit' also submits rollouts and ends its own, 'admin' may do all: a trainer
        needs it, since it pushes weights.
    """
    tokens = _tokens(file)
    print(tokens.add(name, role))
    Screen(sys.stderr).note(f"for services whose --tokens-file is {tokens.path}")


@token.command
def remove(name: str, /, *, file: File = None) -> None:
    """Refuse somebody's token from now on."""
    _tokens(file).remove(name)


@token.command(name="list")
def list_(*, file: File = None) -> None:
    """Show whose tokens there are, and their roles."""
    table = Table("name", "role", "added", box=None)
    tokens = _tokens(file)
    for name, one in tokens.read().items():
        table.add_row(name, one.role.value, ago(one.added_at))
    screen = Screen(sys.stdout)
    screen.table(table)
    screen.note(f"in {tokens.path}")


def _tokens(file: Path | None) -> TokenFile:
    path = file or tokens_file()
    if path is None:
        raise ProRLError("you have no home directory", hint="name a file: `--file FILE`")
    return TokenFile(path)
