"""Apptainer's own long-running containers: `instance start`, and `exec` into one per command."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.tools.rungs import CONTAINED, CONTAINER_USER, bare_exec
from bench.tools.shells import Run, process_per_command, run_process


@contextmanager
def instance_home() -> Iterator[str]:
    """Yields a home directory: Apptainer notes its instances in that of the user it runs as."""
    home = tempfile.mkdtemp(prefix="prorl-bench-")
    if CONTAINER_USER is not None:
        os.chown(home, CONTAINER_USER, CONTAINER_USER)
    try:
        yield home
    finally:
        shutil.rmtree(home)


def start_command(image: Path, name: str) -> list[str]:
    return [_apptainer(), "--silent", "instance", "start", *CONTAINED, str(image), name]


def stop_all(home: str) -> None:
    stop = [_apptainer(), "--silent", "instance", "stop", "--signal", "KILL", "--all"]
    run_process(stop, user=CONTAINER_USER, home=home)


@contextmanager
def exec_into_instance(image: Path) -> Iterator[Run]:
    with instance_home() as home:
        # The instance keeps the standard output of what starts it.
        silent = ["sh", "-c", '"$@" >/dev/null 2>&1', "sh", *start_command(image, "bench")]
        run_process(silent, user=CONTAINER_USER, home=home)
        try:
            argv = [*bare_exec("instance://bench", []), "bash", "-c"]
            yield process_per_command(argv, user=CONTAINER_USER, home=home)
        finally:
            stop_all(home)


def _apptainer() -> str:
    return bare_exec(Path(), [])[0]
