"""Reports of commands' errors: known ones as one line and what to do, others as tracebacks."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from cyclopts import CycloptsError, UnusedCliTokensError
from pydantic import ValidationError

from prorl_service.errors import ProRLError, problems_of
from prorl_service.utils.visible import visible


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Ends the program with code 2 for an error that `report` knows."""
    try:
        yield
    except Exception as error:
        if not report(error):
            raise
        sys.exit(2)


def report(error: Exception) -> bool:
    """Print a known error. Returns False, and prints nothing, for any other."""
    cause = error.__cause__ if isinstance(error, CycloptsError) else error
    if isinstance(cause, ProRLError):
        _print(cause.message, cause.hint)
    elif isinstance(cause, ValidationError):
        is_command_line = cause is not error
        _print(_options(cause) if is_command_line else problems_of(cause))
    elif isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        _print(f"{error.unused_tokens[0]!r} belongs to no option", "`--help` lists the options")
    elif isinstance(error, CycloptsError):
        _print(str(error))
    else:
        return False
    return True


def _options(error: ValidationError) -> str:
    """Returns the problems of options, each by its flag; settings are nested, flags are not."""
    return "; ".join(
        f"--{str(one['loc'][-1]).replace('_', '-')}: {one['msg'].removeprefix('Value error, ')}"
        for one in error.errors()
    )


def _print(problem: str, hint: str = "") -> None:
    print(f"prorl: {visible(problem)}", file=sys.stderr)
    if hint and hint not in problem:
        print(f"  {visible(hint)}", file=sys.stderr)
