"""Engines, services and fronts as processes on this machine, for demos, notebooks and tests.

A process ends with its `with` block, or with the thread that entered the block, however that ends
(Linux ties a child's parent-death signal to a thread): enter it in the main thread, or in one that
outlives it.
"""

import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO

import httpx

from prorl_service.errors import ProRLError

STOP_TIMEOUT_S = 20
START_TIMEOUT_S = 120
PORT_TIMEOUT_S = 2
"""Seconds to wait for a port to be free: a killed process may hold it for a moment."""
FIRST_PORT = 10_000
"""Lowest port to choose; people choose lower ones by hand."""


@dataclass(frozen=True, slots=True)
class LocalProcess:
    url: str
    log: Path
    process: "subprocess.Popen[bytes]"

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """Ends the process like a crash, without cleanup."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()


def engine(
    model: Path, *, log: Path, port: int | None = None, options: Sequence[str] = ()
) -> AbstractContextManager[LocalProcess]:
    """Runs the reference engine, serving `model`. `options`: those of `prorl engine`."""
    return _prorl(["engine", "--model", str(model), *options], log, port)


def service(
    backends: Sequence[str], *, log: Path, port: int | None = None, options: Sequence[str] = ()
) -> AbstractContextManager[LocalProcess]:
    """Runs the rollout service on the engines at the URLs `backends`. `options`: those of `prorl
    serve`; without `--journal` the journal is in memory."""
    return _prorl(["serve", "--journal", "none", *_engines(backends), *options], log, port)


def front(
    services: Path,
    backends: Sequence[str],
    *,
    log: Path,
    port: int | None = None,
    options: Sequence[str] = (),
) -> AbstractContextManager[LocalProcess]:
    """Runs a front for the services announced in the directory `services`. `options`: those of
    `prorl front`; without `--journal` the journal is in memory."""
    command = ["front", "--services", str(services), "--journal", "none"]
    return _prorl([*command, *_engines(backends), *options], log, port)


def _engines(backends: Sequence[str]) -> list[str]:
    return [argument for url in backends for argument in ("--backend", url)]


def _prorl(
    arguments: list[str], log: Path, port: int | None
) -> AbstractContextManager[LocalProcess]:
    command = [sys.executable, "-m", "prorl_service.cli", *arguments]
    return running(command, log=log, port=port)


@contextmanager
def running(
    command: Sequence[str],
    *,
    log: Path,
    port: int | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
    start_timeout_s: float = START_TIMEOUT_S,
) -> Iterator[LocalProcess]:
    """Runs `command` with `--port` and further variables, healthy when the block is entered. Raises
    `ProRLError` with the end of the log if it does not start."""
    port = free_port() if port is None else _free(port)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = _start([*command, "--port", str(port)], output, environment)
    started = LocalProcess(f"http://127.0.0.1:{port}", log, process)
    try:
        _wait_until_healthy(started, start_timeout_s)
        yield started
    finally:
        started.stop()


def _start(
    command: Sequence[str], output: IO[bytes], environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    # setpriv (util-linux) ends the child with its parent; a preexec_fn may deadlock under threads.
    return subprocess.Popen(
        ["setpriv", "--pdeathsig", "TERM", *command],
        stdout=output,
        stderr=output,
        stdin=subprocess.DEVNULL,
        env=os.environ | environment,
    )


def free_port() -> int:
    """Returns a free port, if possible one below the kernel's ephemeral range: the kernel does not
    assign it to another process before the caller listens there."""
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = range(FIRST_PORT, first_given)
    # Trainers seed `random`: two of them would choose the same ports.
    for port in random.SystemRandom().sample(ports, min(len(ports), 100)):
        if bind_problem(port) is None:
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _free(port: int) -> int:
    """Returns `port` once it is free. Raises `ProRLError` if it stays in use: its listener would be
    mistaken for the process to be started."""
    deadline = time.monotonic() + PORT_TIMEOUT_S
    while (problem := bind_problem(port)) is not None:
        if time.monotonic() > deadline:
            raise ProRLError(f"port {port} cannot be used: {problem.strerror}")
        time.sleep(0.05)
    return port


def bind_problem(port: int, host: str = "127.0.0.1") -> OSError | None:
    """Returns why nothing can listen there now; None if it is free."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error
    return None


def _wait_until_healthy(started: LocalProcess, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    with httpx.Client(trust_env=False, timeout=5) as http:
        while started.process.poll() is None and time.monotonic() < deadline:
            with suppress(httpx.TransportError):
                is_healthy = http.get(f"{started.url}/health").is_success
                if is_healthy and started.process.poll() is None:
                    return
            time.sleep(0.05)
    tail = started.log.read_text(errors="replace")[-2000:]
    raise ProRLError(f"{started.process.args!r} did not become healthy; its log ends:\n{tail}")
