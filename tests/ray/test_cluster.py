"""Runs on a Ray cluster whose nodes, services, fronts and supervisors are killed."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import ray

from prorl_service.client import RolloutClient
from prorl_service.ray import runs
from prorl_service.ray.supervisor import NAMESPACE, actor_name
from prorl_service.testing import StubEngine
from prorl_service.tokens.chat import ChatFormat
from tests.faults.processes import stub_engine
from tests.front.test_front import assert_done, ids_of
from tests.ray.clusters import (
    CHECKOUT,
    RESOURCE,
    SERVE,
    TOKEN,
    RayCluster,
    begin,
    cluster,
    environment,
    is_gone,
    is_serving_again,
    plan_of,
    service_on,
    serving,
)
from tests.ray.loads import WAIT_S, Submitted, groups_of, until
from tests.rollouts.journals import rollout_states
from tests.server.scored_agent import SCORED

pytestmark = [pytest.mark.processes, pytest.mark.slow]

FIRST, SECOND, THIRD = "127.0.0.3", "127.0.0.4", "127.0.0.5"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """A head, and two nodes for rollouts."""
    with cluster(tmp_path_factory.mktemp("cluster")) as running:
        running.add()
        running.add()
        yield running
        assert not running.errors()


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[StubEngine]:
    with stub_engine(tiny_model) as running:
        yield running


@pytest.fixture(scope="module")
def url(nodes: RayCluster, engine: StubEngine) -> Iterator[str]:
    """Address of the run `one`."""
    yield begin(plan_of("one", engine), 2).front.url
    runs.stop("one")
    assert not runs.names()
    assert not nodes.announced("one")


@pytest.fixture
def client(url: str) -> Iterator[RolloutClient]:
    with RolloutClient(url, token=TOKEN, retry_s=WAIT_S) as connected:
        yield connected


def loads(run: str) -> dict[str, int]:
    return {one.address: one.load for one in runs.status(run).nodes}


def test_rollouts_end_once_whatever_dies(
    nodes: RayCluster, client: RolloutClient, engine: StubEngine
) -> None:
    """A service, the supervisor, the front, and a node, after which a new one takes its place."""
    submitted = Submitted(client, groups_of("dying", 16, 4.0))
    until(lambda: all(loads("one").values()))
    status = runs.status("one")
    old = service_on(status, FIRST).report
    os.kill(old.pid, signal.SIGKILL)
    supervisor = ray.get_actor(actor_name("one", "supervisor"), NAMESPACE)
    ray.kill(supervisor, no_restart=False)
    os.kill(status.front.pid, signal.SIGKILL)
    until(lambda: is_serving_again("one", FIRST, old.pid))
    assert service_on(runs.status("one"), FIRST).report.url == old.url
    assert serving("one", 2).front.url == status.front.url

    lost = service_on(runs.status("one"), SECOND).report
    nodes.kill_at(SECOND)
    nodes.add()
    until(lambda: nodes.announced("one") == {FIRST, THIRD})
    assert is_gone(lost.pid)
    assert_done(submitted.ended(), submitted.groups)
    ends = Counter(rollout_states(nodes.journal("one")))
    assert ends == Counter({(one, "done"): 1 for one in ids_of(submitted.groups)})

    more = Submitted(client, groups_of("more", 8, 2.0))
    until(lambda: loads("one").get(THIRD, 0) > 0)
    assert_done(more.ended(), more.groups)


def test_work_that_has_ended_is_not_done_again_after_the_front_dies(
    client: RolloutClient, engine: StubEngine
) -> None:
    groups = groups_of("kept", 3, 0.1)
    client.submit(groups)
    before = client.wait(ids_of(groups), WAIT_S)
    calls = engine.calls
    old = runs.status("one").front
    os.kill(old.pid, signal.SIGKILL)
    until(lambda: runs.status("one").front.pid not in (0, old.pid))
    assert client.wait(ids_of(groups), WAIT_S) == before
    assert engine.calls == calls


def test_two_runs_share_the_nodes_and_no_tokens(
    nodes: RayCluster, client: RolloutClient, tiny_model: Path, engine: StubEngine
) -> None:
    end = ChatFormat.load(tiny_model).end_of_turn_id
    with StubEngine(tiny_model, lambda _: [7, 8, end]).in_thread() as other:
        there = replace(plan_of("two", other), host="0.0.0.0")
        status = begin(there, 2)
        assert runs.names() == ["one", "two"]
        with RolloutClient(status.front.url, token=TOKEN) as second:
            groups = groups_of("both", 4, 0.5)
            mine, others = Submitted(client, groups), Submitted(second, groups)
            assert_done(mine.ended(), groups)
            ended = others.ended()
        assert {one.attempt for one in ended} == {1}
        tokens = [one.trajectory.segments[0].response_ids for one in ended if one.trajectory]
        assert tokens == [[7, 8, end]] * len(ids_of(groups))
        runs.stop("two")
    assert runs.names() == ["one"]
    until(lambda: is_gone(status.front.pid))


def test_commands_find_the_run(nodes: RayCluster, url: str, engine: StubEngine) -> None:
    again = prorl(
        nodes,
        *("up", "--run", "one", "--agent", SCORED, "--backend", engine.url, "--drain-s", "1"),
        *("--resource", RESOURCE, "--share", "0.5", "--", *SERVE, "--run-workers", "8"),
    )
    assert again.stdout.strip() == url
    assert "run one is up" in again.stderr
    other = prorl(nodes, "up", "--run", "one", "--", *SERVE)
    assert "the run one is up with other options" in other.stderr
    shown = prorl(nodes, "status").stdout
    assert "run one: 2 of 2 services answering" in shown
    assert FIRST in shown
    assert (
        "there is no run x on this cluster; runs: one" in prorl(nodes, "down", "--run", "x").stderr
    )


def prorl(nodes: RayCluster, command: str, *options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "prorl_service.cli", "ray", command, *options],
        env={**environment(), "RAY_ADDRESS": nodes.address},
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
