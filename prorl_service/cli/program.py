"""A function as a command-line program: its parameters are the options, known errors one line."""

import sys
from collections.abc import Callable

from cyclopts import App

from prorl_service.cli.errors import one_line_errors
from prorl_service.cli.main import DEFAULTS


def run(function: Callable[..., int | None]) -> None:
    """Runs `function` and ends the process with the exit code that it returns."""
    app = App(default_command=function, default_parameter=DEFAULTS)
    with one_line_errors():
        sys.exit(app(exit_on_error=False, print_error=False, result_action="return_value"))
