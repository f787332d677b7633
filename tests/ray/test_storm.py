"""A thousand rollouts while nodes, raylets, services, the front and the supervisor die at random.

Prints the seconds that each event cost: `scripts/test-ray tests/ray/test_storm.py -s`. Writes them
to the file `PRORL_TEST_REPORT` for `bench.nodes`.
"""

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import ray

from prorl_service.client import RolloutClient, ServiceCallError
from prorl_service.ray import runs
from prorl_service.ray.plan import NodeStatus, State
from prorl_service.ray.supervisor import NAMESPACE, actor_name
from prorl_service.testing import StubEngine
from tests.faults.processes import stub_engine
from tests.front.test_front import assert_done, ids_of
from tests.ray.clusters import HEAD, RayCluster, begin, cluster, plan_of
from tests.ray.loads import Submitted, groups_of, until
from tests.rollouts.journals import rollout_states

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.on_demand,
    pytest.mark.timeout(900),
]

RUN = "storm"
NODES, ROLLOUTS, LENGTH_S = 4, 1000, 5.0
ROUNDS = 2
"""How often each event happens."""
PAUSE_S = 3.0

Recovered = Callable[[], bool]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[RayCluster]:
    with cluster(tmp_path / "cluster") as running:
        for _ in range(NODES):
            running.add()
        yield running
        assert not running.errors()


@pytest.fixture
def engine(tiny_model: Path) -> Iterator[StubEngine]:
    with stub_engine(tiny_model) as running:
        yield running


class Events:
    """Each method is an event. It returns what says that the rollouts concerned are begun again."""

    def __init__(self, nodes: RayCluster, client: RolloutClient, seed: int) -> None:
        self._nodes = nodes
        self._client = client
        self._random = random.Random(seed)

    def service_killed(self) -> Recovered:
        victim = self._victim()
        os.kill(victim.report.pid, signal.SIGKILL)
        return lambda: self._serves_again(victim)

    def service_hangs(self) -> Recovered:
        victim = self._victim()
        os.kill(victim.report.pid, signal.SIGSTOP)
        return lambda: self._is_left(victim)

    def raylet_killed(self) -> Recovered:
        victim = self._victim()
        self._nodes.kill_raylet_at(victim.address)
        self._nodes.add()
        return lambda: self._is_left(victim)

    def node_killed(self) -> Recovered:
        victim = self._victim()
        self._nodes.kill_at(victim.address)
        self._nodes.add()
        return lambda: self._is_left(victim)

    def front_killed(self) -> Recovered:
        os.kill(runs.status(RUN).front.pid, signal.SIGKILL)
        return self._front_answers

    def supervisor_killed(self) -> Recovered:
        ray.kill(ray.get_actor(actor_name(RUN, "supervisor"), NAMESPACE), no_restart=False)
        return lambda: runs.status(RUN).front.state is State.SERVING

    def _victim(self) -> NodeStatus:
        """Returns a service that has rollouts, as soon as there is one."""
        found: list[NodeStatus] = []

        def look() -> bool:
            serving = (one for one in runs.status(RUN).nodes if one.report.state is State.SERVING)
            found[:] = [one for one in serving if one.takes_rollouts and one.load]
            return bool(found)

        until(look)
        return self._random.choice(found)

    def _serves_again(self, victim: NodeStatus) -> bool:
        found = [one for one in runs.status(RUN).nodes if one.name == victim.name]
        serving = (one for one in found if one.report.state is State.SERVING)
        return any(one.report.pid != victim.report.pid for one in serving)

    def _is_left(self, victim: NodeStatus) -> bool:
        """Returns whether the front has given all its rollouts to others."""
        with suppress(ServiceCallError):
            behind = self._client.status().services
            return not any(one.load for one in behind if one.name == victim.name)
        return False

    def _front_answers(self) -> bool:
        try:
            self._client.health()
        except ServiceCallError:
            return False
        return True


def test_a_thousand_rollouts_end_once(nodes: RayCluster, engine: StubEngine) -> None:
    url = begin(plan_of(RUN, engine, workers=16), NODES).front.url
    groups = groups_of("storm", ROLLOUTS // 4, LENGTH_S)
    seed = int(os.environ.get("PRORL_TEST_SEED", "1"))
    began_at = time.monotonic()
    with (
        RolloutClient(url, token=plan_of(RUN, engine).token, retry_s=120) as client,
        RolloutClient(url, token=plan_of(RUN, engine).token, retry_s=0, idle_s=2) as impatient,
    ):
        submitted = Submitted(client, groups, wait_s=600)
        events = Events(nodes, impatient, seed)
        kinds = [one for one in dir(Events) if not one.startswith("_")] * ROUNDS
        random.Random(seed).shuffle(kinds)
        lost: dict[str, list[float]] = {}
        for kind in kinds:
            time.sleep(PAUSE_S)
            at = time.monotonic()
            recovered = getattr(events, kind)()
            until(recovered)
            lost.setdefault(kind, []).append(time.monotonic() - at)
        assert not submitted.has_ended(), "the events came too late: raise ROLLOUTS"
        ended = submitted.ended()
    took_s = time.monotonic() - began_at
    assert_done(ended, groups)
    ends = Counter(rollout_states(nodes.journal(RUN)))
    assert ends == Counter({(one, "done"): 1 for one in ids_of(groups)})
    _report(lost, f"{len(ended)} rollouts in {took_s:.0f} s, each done once")
    if report := os.environ.get("PRORL_TEST_REPORT"):
        Path(report).write_text(json.dumps({"lost": lost, "rollouts": len(ended)}))
    _report_attempts(Counter(one.attempt for one in ended), engine.calls)
    runs.stop(RUN)
    assert nodes.announced(RUN) == set(), HEAD


def _report(lost: dict[str, list[float]], total: str) -> None:
    lines = [
        f"{kind:20} {' '.join(f'{one:5.1f}' for one in some)} s" for kind, some in lost.items()
    ]
    sys.stdout.write("\n".join(["", total, *lines, ""]))


def _report_attempts(attempts: Counter[int], calls: int) -> None:
    sys.stdout.write(f"attempts: {dict(sorted(attempts.items()))}, model calls: {calls}\n")
