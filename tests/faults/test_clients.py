"""Clients that vanish, repeat themselves and change their minds; a disk that is full."""

import random
import subprocess
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from prorl_service.client import RolloutClient, ServiceCallError
from prorl_service.schemas import RolloutState
from tests.faults.processes import WAIT_S, Traces, group, ids_of, plain_http, service, stub_engine

pytestmark = pytest.mark.processes


def test_ten_thousand_submissions_of_the_same_ids_begin_each_rollout_once(
    tiny_model: Path, tmp_path: Path
) -> None:
    groups = [group(f"g{i}", n=1, turns=1) for i in range(20)]
    with (
        stub_engine(tiny_model, latency_s=0) as engine,
        service([engine.url], tmp_path) as running,
        RolloutClient(running.url) as client,
    ):
        rng = random.Random(0)
        batches = [rng.sample(groups, 5) for _ in range(2000)]
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(client.submit, batches))
        ended = client.wait(ids_of(groups), WAIT_S)
    assert [[one.group_id for one in answer] for answer in answers] == [
        [one.group_id for one in batch] for batch in batches
    ]
    assert {(rollout.state, rollout.attempt) for rollout in ended} == {(RolloutState.DONE, 1)}
    assert engine.calls == 20


def test_cancellation_storms_leave_nothing_behind(tiny_model: Path, tmp_path: Path) -> None:
    traces = Traces()
    groups = [group(f"g{i}", n=8, turns=5) for i in range(16)]
    with (
        stub_engine(tiny_model) as engine,
        service([engine.url], tmp_path) as running,
        RolloutClient(running.url) as client,
    ):
        client.submit(groups)
        rng = random.Random(0)
        storms = [rng.sample(ids_of(groups), 40) for _ in range(40)]
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(client.cancel, storms))
        traces.note(running)
        assert all(rollout.is_terminal for answer in answers for rollout in answer)
        ended = client.wait(ids_of(groups), WAIT_S)
        assert [rollout.error for rollout in ended if rollout.error] == []
        states = Counter(rollout.state for rollout in ended)
        assert states[RolloutState.CANCELLED] > 0
        assert states.keys() <= {RolloutState.CANCELLED, RolloutState.DONE}
        client.submit([group("after", n=1)])
        (after,) = client.wait(["after.0"], WAIT_S)
        assert after.state is RolloutState.DONE
    traces.assert_none_left()


def test_clients_that_hang_up_affect_no_other_client(tiny_model: Path, tmp_path: Path) -> None:
    groups = [group(f"g{i}", n=4, turns=2) for i in range(8)]
    with (
        stub_engine(tiny_model) as engine,
        service([engine.url], tmp_path) as running,
        RolloutClient(running.url) as client,
    ):
        client.submit(groups)
        stop = threading.Event()

        def hang_up() -> None:
            body = {"rollout_ids": ids_of(groups)}
            while not stop.is_set():
                with (
                    plain_http(running.url, 5) as http,
                    http.stream("POST", "/v1/rollouts/stream", json=body) as response,
                ):
                    next(response.iter_raw(), None)

        with ThreadPoolExecutor(4) as pool:
            callers = [pool.submit(hang_up) for _ in range(4)]
            ended = client.wait(ids_of(groups), WAIT_S)
            stop.set()
            for caller in callers:
                caller.result()
        assert {rollout.state for rollout in ended} == {RolloutState.DONE}
        client.health()


def test_work_whose_client_has_vanished_is_reclaimed(tiny_model: Path, tmp_path: Path) -> None:
    traces = Traces()
    with (
        stub_engine(tiny_model) as engine,
        service([engine.url], tmp_path) as running,
        RolloutClient(running.url) as client,
    ):
        client.submit([group("left", n=2, sleep=1000, lease_s=1), group("kept", n=1, sleep=1)])
        while client.status().rollouts.get(RolloutState.CANCELLED, 0) < 2:
            time.sleep(0.05)
        traces.note(running)
        left = client.get("left.0")
        assert left.error is not None
        assert left.error.kind == "LeaseExpired"
        (kept,) = client.wait(["kept.0"], WAIT_S)
        assert kept.state is RolloutState.DONE
    traces.assert_none_left()


def test_a_lease_is_held_by_an_open_wait(tiny_model: Path, tmp_path: Path) -> None:
    with (
        stub_engine(tiny_model) as engine,
        service([engine.url], tmp_path) as running,
        RolloutClient(running.url) as client,
    ):
        held = group("held", n=1, turns=1, sleep=2, lease_s=0.5)
        client.submit([held])
        (rollout,) = client.wait(held.rollout_ids(), WAIT_S)
    assert rollout.state is RolloutState.DONE


def test_too_many_rollouts_are_refused_until_there_is_room(
    tiny_model: Path, tmp_path: Path
) -> None:
    with (
        stub_engine(tiny_model) as engine,
        service([engine.url], tmp_path, "--max-unfinished", "2") as running,
        RolloutClient(running.url, retry_s=0) as client,
        RolloutClient(running.url) as patient,
    ):
        client.submit([group("a", n=2, turns=1, sleep=1)])
        with pytest.raises(ServiceCallError, match="the limit of 2 would be passed") as refused:
            client.submit([group("b", n=1)])
        assert refused.value.http_status == 429
        assert refused.value.retryable
        patient.submit([group("b", n=1)])
        (rollout,) = patient.wait(["b.0"], WAIT_S)
        assert rollout.state is RolloutState.DONE


@pytest.mark.logs("the journal .* cannot be written")
def test_a_full_disk_refuses_new_work_and_loses_nothing(tiny_model: Path, tmp_path: Path) -> None:
    groups = [group(f"g{i}", n=4, turns=2) for i in range(4)]
    with (
        stub_engine(tiny_model) as engine,
        service([engine.url], tmp_path) as running,
        RolloutClient(running.url, retry_s=0) as client,
    ):
        client.submit(groups)
        written = max(path.stat().st_size for path in tmp_path.glob("journal.sqlite*"))
        _limit_files(running.pid, f"{written}:unlimited")
        with pytest.raises(ServiceCallError, match="cannot be written") as refused:
            _submit_many(client)
        assert refused.value.http_status == 503
        assert refused.value.retryable
        client.get("g0.0")
        _limit_files(running.pid, "unlimited:unlimited")
        ended = client.wait(ids_of(groups), WAIT_S)
        assert {rollout.state for rollout in ended} == {RolloutState.DONE}
        assert {rollout.attempt for rollout in ended} == {1}


def _submit_many(client: RolloutClient) -> None:
    for number in range(1000):
        client.submit([group(f"new{number}", n=1)])


def _limit_files(pid: int, limits: str) -> None:
    subprocess.run(["prlimit", f"--pid={pid}", f"--fsize={limits}"], check=True)
