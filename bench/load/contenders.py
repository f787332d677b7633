"""The contenders; each runs in a process of its own, against a stub engine of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from bench.load import ours
from bench.load.meter import Measured

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
