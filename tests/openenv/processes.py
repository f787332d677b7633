"""Servers of OpenEnv as processes, in an environment of their own: `scripts/setup-openenv`."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from prorl_service.local import free_port

ROOT = Path(__file__).parents[2]
BIN = ROOT / ".venv-openenv" / "bin"
ENVIRONMENTS = Path(__file__).parent / "environments"
START_TIMEOUT_S = 300.0
"""Seconds for a server to start: OpenEnv imports gradio, ten seconds of work."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "OPENREWARD_DISABLE_UPDATE_CHECK": "1"}

needs_openenv = pytest.mark.skipif(
    not (ROOT / ".venv-openenv/.installed").exists(),
    reason="OpenEnv is not installed: scripts/setup-openenv",
)


class Server:
    """A server at one address, which may be killed and started again."""

    def __init__(
        self,
        command: Sequence[str],
        port: int,
        output: Path,
        *,
        directory: Path = ROOT,
        environment: Mapping[str, str] = {},
    ) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._command = command
        self._output = output
        self._directory = directory
        self._environment = {**os.environ, **OFFLINE, **environment}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when the server answers."""
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                [str(BIN / "python"), *self._command],
                cwd=self._directory,
                env=self._environment,
                stdout=output,
                stderr=output,
            )
        ends_at = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            assert self._process.poll() is None, self._output.read_text()
            assert time.monotonic() < ends_at, self._output.read_text()
            time.sleep(0.1)

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def until_ended(self) -> None:
        assert self._process is not None
        self._process.wait()

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", trust_env=False).is_success
        except httpx.TransportError:
            return False


class GuessServer(Server):
    """The server of `environments/guess.py`; `saw` is its record."""

    def __init__(self, directory: Path, sessions: int) -> None:
        self.log = directory / "guess.seen"
        self.log.touch()
        port = free_port()
        command = [str(ENVIRONMENTS / "guess.py"), str(port), str(sessions)]
        environment = {"GUESS_LOG": str(self.log)}
        super().__init__(command, port, directory / "guess.out", environment=environment)

    def forget(self) -> None:
        self.log.write_text("")

    def saw(self) -> list[list[str]]:
        return [line.split() for line in self.log.read_text().splitlines()]

    def count(self, kind: str) -> int:
        return sum(line[0] == kind for line in self.saw())

    def most_sessions(self) -> int:
        """Returns the largest number of episodes that were open at the same time."""
        change = {"reset": 1, "close": -1}
        running, most = 0, 0
        for kind, *_ in self.saw():
            running += change.get(kind, 0)
            most = max(most, running)
        return most

    async def until_saw(self, kind: str, times: int = 1) -> None:
        """Waits without a deadline: the test's own timeout is the budget."""
        while self.count(kind) < times:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@contextmanager
def started(server: Server) -> Iterator[None]:
    try:
        server.start()
        yield
    finally:
        server.kill()


@contextmanager
def guess_server(directory: Path, *, sessions: int = 16) -> Iterator[GuessServer]:
    server = GuessServer(directory, sessions)
    with started(server):
        yield server


@contextmanager
def echo_server(directory: Path) -> Iterator[Server]:
    """Runs the environment that `openenv init` makes, as it is: it has room for one session."""
    _openenv("init", "echo_env", "--output-dir", str(directory))
    with _served("echo_env", directory) as server:
        yield server


@contextmanager
def ors_server(directory: Path) -> Iterator[Server]:
    """Runs what `openenv import` makes of an environment of the Open Reward Standard."""
    source = str(ENVIRONMENTS / "ors_sums")
    _openenv("import", source, "--name", "sums_env", "--output-dir", str(directory))
    with _served("sums_env", directory) as server:
        yield server


@contextmanager
def _served(package: str, directory: Path) -> Iterator[Server]:
    port = free_port()
    command = ["-m", "uvicorn", f"{package}.server.app:app", "--port", str(port)]
    server = Server(command, port, directory / f"{package}.out", directory=directory)
    with started(server):
        yield server


def _openenv(*arguments: str) -> None:
    subprocess.run([str(BIN / "openenv"), *arguments], check=True, capture_output=True)
