"""Engines as processes of their own, `python -m MODULE PORT ARGUMENTS`."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from prorl_service.local import free_port

ROOT = Path(__file__).parents[2]


@contextmanager
def engine(model: Path, latency_ms: int) -> Iterator[str]:
    """Yields the URL of the load's stub engine."""
    with engine_program("bench.load.engine", str(model), str(latency_ms)) as url:
        yield url


@contextmanager
def engine_program(module: str, *arguments: str) -> Iterator[str]:
    """Yields the URL of an engine; it ends with this process, too."""
    port = free_port()
    program = [sys.executable, "-m", module, str(port), *arguments]
    command = ["setpriv", "--pdeathsig", "TERM", *program]
    with subprocess.Popen(command, cwd=ROOT) as process:
        url = f"http://127.0.0.1:{port}"
        try:
            _wait_until_healthy(process, url)
            yield url
        finally:
            process.terminate()


def _wait_until_healthy(process: "subprocess.Popen[bytes]", url: str) -> None:
    while process.poll() is None:
        try:
            with urlopen(f"{url}/health"):
                return
        except URLError:
            time.sleep(0.05)
    raise RuntimeError("the stub engine did not start")
