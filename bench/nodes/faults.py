"""A thousand rollouts on eight hosts that die, hang and lose their links, and a front that dies:
how often each ended, and how long each event held its rollouts up."""

import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from bench.nodes.agent import AGENT, GROUP_SIZE, group
from bench.nodes.engine import WaitingEngine, waiting_engine
from bench.nodes.hosts import HERE, Host, hosts, token_file
from bench.nodes.load import CALLS
from bench.nodes.services import SERVE
from prorl_service import local
from prorl_service.client import RolloutClient, ServiceCallError
from prorl_service.schemas import Group, Rollout, RolloutState

HOSTS, ROLLOUTS, CALL_S = 8, 1000, 6.0
ROUNDS = 3
"""How often each event happens."""
PAUSE_S, WAIT_S, LOOK_S = 3.0, 900.0, 0.1

Row = dict[str, object]


class Front:
    """The front's process, which can be killed and started again on the same journal."""

    def __init__(self, directory: Path, engine: WaitingEngine, token: Path) -> None:
        self._directory, self._engine, self._token = directory, engine, token
        self._port = local.free_port()
        self._running: AbstractContextManager[local.LocalProcess] | None = None
        self._process: local.LocalProcess | None = None

    def start(self) -> str:
        """Returns its URL once it answers."""
        options = [
            *(*AGENT, "--journal", str(self._directory / "front.sqlite"), "--resume"),
            *("--token-file", str(self._token), "--wait-for", "1"),
        ]
        self._running = local.front(
            self._directory / "services",
            [self._engine.url],
            log=self._directory / "front.log",
            port=self._port,
            options=options,
        )
        self._process = self._running.__enter__()
        return self._process.url

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()

    def stop(self) -> None:
        if self._running is not None:
            self._running.__exit__(None, None, None)


class Events:
    """Each method is an event, and returns when the rollouts concerned are at work again."""

    def __init__(self, at: Sequence[Host], front: Front, client: RolloutClient) -> None:
        self._hosts, self._front, self._client = at, front, client
        self._random = random.Random(1)

    def service_killed(self) -> Callable[[], None]:
        victim = self._victim()
        victim.kill()
        self._until_left(victim)
        return victim.start

    def service_hangs(self) -> Callable[[], None]:
        victim = self._victim()
        victim.signal(signal.SIGSTOP)
        self._until_left(victim)
        return lambda: victim.signal(signal.SIGCONT)

    def link_down(self) -> Callable[[], None]:
        victim = self._victim()
        victim.link("down")
        self._until_left(victim)
        return lambda: victim.link("up")

    def front_killed(self) -> Callable[[], None]:
        self._front.kill()
        self._front.start()
        return lambda: None

    def _victim(self) -> Host:
        """Returns a host whose service has rollouts, as soon as there is one."""
        while not (having := [one for one in self._hosts if self._load(one)]):
            time.sleep(LOOK_S)
        return self._random.choice(having)

    def _until_left(self, host: Host) -> None:
        while self._load(host) != 0:
            time.sleep(LOOK_S)

    def _load(self, host: Host) -> int | None:
        """Returns the number of rollouts that the front counts there; None if it says nothing."""
        with suppress(ServiceCallError):
            behind = self._client.status().services
            return sum(one.load for one in behind if one.name == host.name)
        return None


def faults() -> tuple[list[Row], dict[str, object]]:
    kinds = [one for one in dir(Events) if not one.startswith("_")] * ROUNDS
    random.Random(1).shuffle(kinds)
    groups = [group(CALLS) for _ in range(ROLLOUTS // GROUP_SIZE)]
    with tempfile.TemporaryDirectory(prefix="prorl-bench-") as place:
        directory = Path(place)
        (directory / "services").mkdir(mode=0o700)
        token = token_file(directory)
        options = (*SERVE, "--token-file", str(token))
        with (
            hosts(HOSTS, directory, options) as at,
            waiting_engine(directory, HERE) as engine,
        ):
            engine.mean_s = CALL_S
            front = Front(directory, engine, token)
            try:
                lost, ended, again = _under_load(at, front, token.read_text(), kinds, groups)
            finally:
                front.stop()
    return _told(lost, ended, again)


def _under_load(
    at: Sequence[Host], front: Front, token: str, kinds: Sequence[str], groups: Sequence[Group]
) -> tuple[dict[str, list[float]], list[Rollout], list[Rollout]]:
    """Returns seconds by event, all rollouts as they ended, and as they are a moment later."""
    ids = [one for each in groups for one in each.rollout_ids()]
    url = front.start()
    lost: dict[str, list[float]] = {}
    with (
        ThreadPoolExecutor(1) as pool,
        RolloutClient(url, token=token, retry_s=120) as client,
        RolloutClient(url, token=token, retry_s=0, idle_s=5) as impatient,
    ):
        client.submit(groups)
        waiting = pool.submit(client.wait, ids, WAIT_S)
        events = Events(at, front, impatient)
        for kind in kinds:
            time.sleep(PAUSE_S)
            began = time.monotonic()
            mend = getattr(events, kind)()
            lost.setdefault(kind, []).append(round(time.monotonic() - began, 1))
            print(f"  {kind}: {lost[kind][-1]} s, load {os.getloadavg()[0]:.1f}", flush=True)
            mend()
        if waiting.done():
            raise RuntimeError("the rollouts ended before the last event: raise ROLLOUTS")
        ended = waiting.result()
        return lost, ended, client.wait(ids, WAIT_S)


def _told(
    lost: dict[str, list[float]], ended: Sequence[Rollout], again: Sequence[Rollout]
) -> tuple[list[Row], dict[str, object]]:
    rows: list[Row] = [
        {"event": kind.replace("_", " "), "seconds": some, "most_s": max(some)}
        for kind, some in lost.items()
    ]
    attempts = [one.attempt for one in ended]
    rows.append({"rollouts": len(ended), "attempts": {n: attempts.count(n) for n in set(attempts)}})
    return rows, {
        "kills": sum(len(some) for some in lost.values()),
        "rollouts_lost": ROLLOUTS - sum(one.state is RolloutState.DONE for one in ended),
        "rollouts_twice": sum(a != b for a, b in zip(ended, again, strict=True)),
        "recovery_s_max": max(max(some) for some in lost.values()),
    }


def storm() -> tuple[list[Row], dict[str, object]]:
    """The same on a Ray cluster, whose nodes and actors die as well: `tests/ray/test_storm.py`."""
    with tempfile.NamedTemporaryFile("r", suffix=".json") as report:
        environment = {**os.environ, "PRORL_TEST_REPORT": report.name}
        command = ["scripts/test-ray", "tests/ray/test_storm.py"]
        subprocess.run(command, env=environment, check=True)
        found = json.load(report)
    lost = {
        kind.replace("_", " "): [round(one, 1) for one in some]
        for kind, some in found["lost"].items()
    }
    rows = [{"event": kind, "seconds": some, "most_s": max(some)} for kind, some in lost.items()]
    seconds = [one for some in lost.values() for one in some]
    return rows, {
        "ray_kills": len(seconds),
        "ray_rollouts": found["rollouts"],
        "ray_recovery_s_max": max(seconds),
    }
