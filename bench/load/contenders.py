"""The contenders; each runs in a process of its own, against a stub engine of its own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from bench.load import ours
from bench.load.meter import Measured
from prorl_service.local import free_port

ROOT = Path(__file__).parents[2]
PEERS = ROOT / ".venv-bench"
PACKAGES = ["mini-swe-agent==2.4.6", "verifiers==0.4.0"]
UNSAID = ["mcp"]
"""Packages that LiteLLM imports at its first call and does not require."""
PEER_TIMEOUT_S = 300.0

Measure = Callable[[str, int, int], Measured]
"""Function of engine, concurrent rollouts and batches."""


def of_service(kind: ours.Kind, log: Path) -> Measure:
    return lambda engine, n, batches: ours.measure(kind, engine, n, batches, log=log)


def of_program(module: str, *options: str, python: Callable[[], str]) -> Measure:
    """Makes a contender of a program that measures itself: see `meter`."""

    def measure(engine: str, n: int, batches: int) -> Measured:
        command = [python(), "-m", module, engine, str(n), str(batches), *options]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        try:
            done = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, timeout=PEER_TIMEOUT_S, check=True
            )
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
            print(f"  {error}", flush=True)
            return Measured(failures=n * batches)
        return Measured(**json.loads(done.stdout.splitlines()[-1]))

    return measure


def peer(module: str, *options: str) -> Measure:
    return of_program(module, *options, python=_peers_python)


def floor() -> Measure:
    return of_program("bench.load.floor", python=lambda: sys.executable)


def _peers_python() -> str:
    """Returns the Python of the peers' own environment, which is made at first use."""
    python = str(PEERS / "bin" / "python")
    if not (PEERS / "complete").exists():
        print("setting up .venv-bench (some minutes, 700 MB)", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(PEERS)], check=True)
        pip = [python, "-m", "pip", "--disable-pip-version-check", "-qq", "install"]
        subprocess.run([*pip, *PACKAGES, *UNSAID], check=True, stderr=subprocess.DEVNULL)
        (PEERS / "complete").touch()
    return python


@contextmanager
def engine(model: Path, latency_ms: int) -> Iterator[str]:
    with engine_program("bench.load.engine", str(model), str(latency_ms)) as url:
        yield url


@contextmanager
def engine_program(module: str, *arguments: str) -> Iterator[str]:
    """Runs an engine, `python -m MODULE PORT ARGUMENTS`; it ends with this process, too."""
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
