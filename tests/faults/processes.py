"""A service in its own process, engines to break, and a check that no traces are left."""

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import httpx
import psutil
from pydantic import JsonValue

from prorl_service import local
from prorl_service.net.credentials import authorization
from prorl_service.schemas import Group, Limits
from prorl_service.testing import StubEngine
from prorl_service.tokens.chat import ChatFormat
from tests import builders
from tests.faults.engine import Counts, Fault

WAIT_S = 120


@contextmanager
def stub_engine(model: Path, *, latency_s: float = 0.02) -> Iterator[StubEngine]:
    """Runs a stub engine on an event loop in its own thread."""
    end_of_turn = ChatFormat.load(model).end_of_turn_id
    engine = StubEngine(model, lambda _: [5, 6, end_of_turn], latency_s=latency_s)
    with engine.in_thread():
        yield engine


class EngineProcess:
    """An engine of `tests.faults.engine`, in its own process."""

    def __init__(self, port: int, model: Path, latency_s: float) -> None:
        self.backend_id = f"127.0.0.1:{port}"
        self.url = f"http://{self.backend_id}"
        self._arguments = [str(port), str(model), str(latency_s)]

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.faults.engine", *self._arguments]
        self._process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *command])

    def wait_until_it_answers(self) -> None:
        while self._process.poll() is None:
            with suppress(httpx.TransportError):
                self.counts()
                return
            time.sleep(0.05)
        raise RuntimeError("the engine has ended")

    def counts(self) -> Counts:
        return Counts(**httpx.get(f"{self.url}/counts", trust_env=False).json())

    def misbehave(self, fault: Fault) -> None:
        httpx.post(f"{self.url}/fault", json=asdict(fault), trust_env=False).raise_for_status()

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def engine_processes(
    model: Path, count: int, *, latency_s: float = 0.05
) -> Iterator[list[EngineProcess]]:
    """Yields engines that answer already, and kills them in the end."""
    with ExitStack() as stack:
        engines = []
        for port in islice(_ports_to_come_back_to(), count):
            engines.append(EngineProcess(port, model, latency_s))
            stack.callback(engines[-1].kill)
            engines[-1].start()
        for engine in engines:
            engine.wait_until_it_answers()
        yield engines


@contextmanager
def service(
    engines: Sequence[str], directory: Path, *options: str, port: int | None = None
) -> Iterator[local.LocalProcess]:
    """Starts a service with a journal on disk in `directory`."""
    journal = ["--journal", str(directory / "journal.sqlite"), "--resume"]
    agent = ["--agent", "tests.faults.agents:Shell", "--sandbox", "bubblewrap"]
    log = directory / "service.log"
    with local.service(
        engines, log=log, port=port, options=[*journal, *agent, *options]
    ) as running:
        yield running


def plain_http(url: str, timeout_s: float) -> httpx.Client:
    """Returns a client like `RolloutClient`'s own, which gives answers as they are."""
    headers = authorization(url)
    return httpx.Client(base_url=url, headers=headers, timeout=timeout_s, trust_env=False)


def port_to_come_back_to() -> int:
    return next(_ports_to_come_back_to())


def _ports_to_come_back_to() -> Iterator[int]:
    """Yields free ports that nobody takes meanwhile: neither connections nor `local.free_port`."""
    # Some tests seed `random`: two of them would choose the same ports.
    for port in random.SystemRandom().sample(range(5_000, local.FIRST_PORT), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        yield port
    raise RuntimeError("no port is free")


def group(
    group_id: str, n: int = 4, turns: int = 3, lease_s: float | None = None, **data: JsonValue
) -> Group:
    task = builders.task(text="Go on.", agent="shell", data=data)
    limits = Limits(max_turns=turns, run_timeout_s=WAIT_S)
    return Group(group_id=group_id, task=task, n=n, limits=limits, lease_s=lease_s)


def ids_of(groups: Sequence[Group]) -> list[str]:
    return [rollout_id for one in groups for rollout_id in one.rollout_ids()]


OWNER = re.compile(r"prorl-tmp-(\d+)-")
"""Process in the name of a directory: services of tests that run beside have some, too."""


class Traces:
    """Traces that a service could leave: its child processes, mounts, sockets, directories."""

    def __init__(self) -> None:
        self._processes: set[psutil.Process] = set()
        self._before = _of_this_machine()

    def note(self, running: local.LocalProcess) -> None:
        """Adds the service, and the child processes that it has now."""
        service = psutil.Process(running.pid)
        self._processes.update([service, *service.children(recursive=True)])

    def assert_none_left(self) -> None:
        """Asserts that nothing is left of the services, all of which must have ended."""
        _, alive = psutil.wait_procs(list(self._processes), timeout=20)
        assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
        own = {str(process.pid) for process in self._processes}
        owners = ((one, OWNER.search(one)) for one in _of_this_machine() - self._before)
        assert not [one for one, owner in owners if owner is None or owner[1] in own]


def _of_this_machine() -> set[str]:
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    sockets = Path("/proc/net/unix").read_text().splitlines()
    named = {line.split()[-1] for line in sockets if "prorl" in line}
    directories = {str(path) for path in Path(os.environ.get("TMPDIR", "/tmp")).glob("prorl-tmp-*")}
    return {*mounts, *named, *directories}
