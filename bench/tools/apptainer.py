"""Apptainer's own command line, `exec`."""

import shutil
from pathlib import Path

from bench.tools.shells import Run, process_per_command
from prorl_service.sandbox.host.zygotes import container_user
from prorl_service.sandbox.kinds.apptainer import OPTIONS

CONTAINER_USER = container_user()
SAME_OPTIONS, CONTAINED = list(OPTIONS), ["-C"]


def apptainer(*arguments: str) -> list[str]:
    program = shutil.which("apptainer")
    assert program, "apptainer is not installed"
    return [program, "--silent", *arguments]


def exec_each(image: Path) -> Run:
    """Starts a container for each command."""
    argv = apptainer("exec", *CONTAINED, str(image), "bash", "-c")
    return process_per_command(argv, user=CONTAINER_USER)
