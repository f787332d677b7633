"""A function as a command-line program: its parameters are options, known errors are one line.

Others end with a traceback. Imports little, so that help is fast.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError

import prorl_service


def _shown(default: object) -> str | None:
    """Returns a default as the help shows it; None hides a default that says nothing."""
    if default in ((), [], "", False, None):
        return None
    return f"{default:g}" if isinstance(default, float) else str(default)


DEFAULTS = Parameter(negative=(), show_env_var=False, show_default=_shown, allow_repeating=True)


MOST_CHARS = 2000
"""Most characters of a line for a person."""
Json = Annotated[bool, Parameter("--json", help="Print JSON, for programs.")]
JsonLines = Annotated[bool, Parameter("--json", help="Print an object a line, for programs.")]


def run(function: Callable[..., int | None]) -> None:
    """Runs `function` and ends the process with the exit code that it returns."""
    app = App(default_command=function, default_parameter=DEFAULTS)
    with one_line_errors():
        sys.exit(app(exit_on_error=False, print_error=False, result_action="return_value"))


def options_in(file: Path, flag: str, example: str) -> Mapping[str, Any]:
    """Returns the options in a YAML file that `flag` names. Raises `ProRLError`."""
    import yaml

    from prorl_service.errors import ProRLError

    try:
        options = yaml.safe_load(file.read_text()) or {}
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1}"
        said = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise ProRLError(f"{flag} {file}{line}: {said}") from None
    except UnicodeDecodeError as error:
        raise ProRLError(f"{flag} {file}: {error}") from None
    except OSError as error:
        raise ProRLError(f"{flag} {file}: {error.strerror}") from None
    if not isinstance(options, dict):
        raise ProRLError(f"{flag} {file}: expected options by name, such as `{example}`")
    return options


def brought(in_wheel: str, in_checkout: str) -> Path:
    """Returns a directory of files that are no code of this package."""
    package = Path(prorl_service.__file__).parent
    installed = package / in_wheel
    return installed if installed.is_dir() else package.parent / in_checkout


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Ends the program with code 2 for an error that `report` knows and, as shells count, with 130
    on Ctrl-C and 141 when the reader of its output has seen enough."""
    try:
        try:
            yield
        except KeyboardInterrupt:
            _print("stopped by Ctrl-C")
            sys.exit(130)
        except Exception as error:
            if not report(error):
                raise
            sys.exit(2)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more
        sys.exit(141)


def report(error: Exception) -> bool:
    """Prints a known error. Returns False, and prints nothing, for any other."""
    from pydantic import ValidationError

    from prorl_service.errors import ProRLError, problems_of

    cause = error.__cause__ if isinstance(error, CycloptsError) else error
    if isinstance(cause, ProRLError):
        _print(cause.message, cause.hint)
    elif isinstance(cause, ValidationError):
        is_command_line = cause is not error
        _print(_options(cause.errors()) if is_command_line else problems_of(cause))
    elif isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        _print(f"{error.unused_tokens[0]!r} belongs to no option", "`--help` lists the options")
    elif isinstance(error, CycloptsError):
        _print(str(error))
    else:
        return False
    return True


def _options(problems: list[Any]) -> str:
    """Returns the problems of options, each by its flag; settings are nested, flags are not."""
    return "; ".join(
        f"--{_last_name(one['loc']).replace('_', '-')}: {one['msg'].removeprefix('Value error, ')}"
        for one in problems
    )


def _last_name(place: tuple[str | int, ...]) -> str:
    return [part for part in place if isinstance(part, str)][-1]


def say(line: str) -> None:
    """Prints a line to standard error: standard output is for results."""
    from prorl_service.utils.visible import visible_line

    print(visible_line(line, limit=MOST_CHARS), file=sys.stderr, flush=True)


def _print(problem: str, hint: str = "") -> None:
    from prorl_service.utils.visible import visible

    print(f"prorl: {visible(problem)}", file=sys.stderr)
    if hint and hint not in problem:
        print(f"  {visible(hint)}", file=sys.stderr)
