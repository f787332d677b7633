"""Engines as processes of their own, `python -m MODULE ARGUMENTS --port PORT`."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from prorl_service import local


@contextmanager
def engine_program(module: str, *arguments: str) -> Iterator[str]:
    """Yields the URL of an engine; it ends with this process, too."""
    command = [sys.executable, "-m", module, *arguments]
    with TemporaryDirectory() as name, local.running(command, log=Path(name, "log")) as process:
        yield process.url


def engine(model: Path, latency_ms: int) -> AbstractContextManager[str]:
    """The load's stub engine."""
    return engine_program("bench.load.engine", str(model), str(latency_ms))
