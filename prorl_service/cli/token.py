"""`prorl token`: the token of this user's services on this machine."""

import os

import typer

from prorl_service.cli.errors import one_line_errors
from prorl_service.net.credentials import TOKEN_VARIABLE, make_own_token


def token() -> None:
    """Print the token of your services on this machine, for curl and for clients elsewhere."""
    with one_line_errors():
        typer.echo(os.environ.get(TOKEN_VARIABLE) or make_own_token())
