"""Apptainer's own command line: `exec`, and long-running containers by `instance start`."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.tools.shells import Run, process_per_command, run_process
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


@contextmanager
def instance_home() -> Iterator[str]:
    """Yields a home directory: Apptainer notes its instances in that of the user it runs as."""
    home = tempfile.mkdtemp(prefix="prorl-bench-")
    if CONTAINER_USER is not None:
        os.chown(home, CONTAINER_USER, CONTAINER_USER)
    try:
        yield home
    finally:
        stop = apptainer("instance", "stop", "--signal", "KILL", "--all")
        run_process(stop, user=CONTAINER_USER, home=home)
        shutil.rmtree(home)


def start_command(image: Path, name: str) -> list[str]:
    return apptainer("instance", "start", *CONTAINED, str(image), name)


@contextmanager
def exec_into_instance(image: Path) -> Iterator[Run]:
    """Starts a process in a running container for each command."""
    with instance_home() as home:
        # The instance keeps the standard output of what starts it.
        silent = ["sh", "-c", '"$@" >/dev/null 2>&1', "sh", *start_command(image, "bench")]
        run_process(silent, user=CONTAINER_USER, home=home)
        argv = apptainer("exec", "instance://bench", "bash", "-c")
        yield process_per_command(argv, user=CONTAINER_USER, home=home)
