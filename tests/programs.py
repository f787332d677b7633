"""Programs that a test runs to their end: what they print, and their exit code."""

import subprocess
import sys
from typing import Any

CLI = (sys.executable, "-m", "prorl_service.cli")


def ran(
    *command: object, timeout: float = 300, check: bool = False, **options: Any
) -> "subprocess.CompletedProcess[str]":
    """`options`: others of `subprocess.run`."""
    words = [*map(str, command)]
    return subprocess.run(
        words, capture_output=True, text=True, timeout=timeout, check=check, **options
    )


def prorl(*arguments: object, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Runs the command in a process of its own; `tests.cli.called` runs it in this one."""
    return ran(*CLI, *arguments, **options)
