"""`prorl` in this process: what a command prints, and its exit code."""

import io
import os
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from unittest.mock import patch

from prorl_service.cli.main import app, main


@dataclass(frozen=True, slots=True)
class Called:
    returncode: int
    stdout: str
    stderr: str


def called(*arguments: object, **environment: str) -> Called:
    """Runs a command without colours and without broken lines."""
    out, problems, config = io.StringIO(), io.StringIO(), app.config
    variables = {"COLUMNS": "200", "NO_COLOR": "1", **environment}
    with (
        patch.dict(os.environ, variables),
        redirect_stdout(out),
        redirect_stderr(problems),
    ):
        try:
            main([*map(str, arguments)])
            code: object = 0
        except SystemExit as end:
            code = end.code or 0
        finally:
            app.config = config
    assert isinstance(code, int)
    return Called(code, out.getvalue(), problems.getvalue())


def printed(*arguments: object, **environment: str) -> str:
    """Returns what a command prints that succeeds."""
    done = called(*arguments, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout
