"""A service that is killed, stopped and restarted: every accepted rollout ends once."""

import random
import shutil
import signal
import sqlite3
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest

from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.client.weights_copy import WeightsCopy
from prorl_service.errors import ProRLError
from prorl_service.schemas import Blame, Rollout, RolloutState, WeightsQuery
from tests.faults.processes import (
    WAIT_S,
    Traces,
    group,
    ids_of,
    port_to_come_back_to,
    service,
    stub_engine,
)
from tests.rollouts.journals import rollout_states
from tests.trainers import Content, trainer

pytestmark = pytest.mark.processes

KILLS = 20


def test_every_accepted_rollout_ends_once_despite_kills_at_random_moments(
    tiny_model: Path, tmp_path: Path
) -> None:
    rng = random.Random(0)
    traces = Traces()
    port = port_to_come_back_to()
    groups = []
    seen: dict[str, Rollout] = {}
    with stub_engine(tiny_model) as engine:
        for kill in range(KILLS + 1):
            with service([engine.url], tmp_path, "--max-attempts", "99", port=port) as running:
                with RolloutClient(running.url) as client:
                    groups += [group(f"g{kill}-{i}") for i in range(3)]
                    client.submit(groups)
                    if kill == KILLS:
                        ended = client.wait(ids_of(groups), WAIT_S)
                    else:
                        time.sleep(rng.uniform(0, 0.8))
                        for rollout in client.submit(groups):
                            _note(rollout, seen)
                traces.note(running)
                if kill < KILLS:
                    running.kill()
    for rollout in ended:
        _note(rollout, seen)
        assert rollout.state is RolloutState.DONE, rollout.error
        assert rollout.trajectory is not None
        assert len(rollout.trajectory.turns) == 3
    assert max(rollout.attempt for rollout in ended) > 1
    rows = rollout_states(tmp_path / "journal.sqlite")
    assert Counter(rows) == Counter({(one, "done"): 1 for one in ids_of(groups)})
    traces.assert_none_left()


def _note(rollout: Rollout, seen: dict[str, Rollout]) -> None:
    """Asserts that reports of an ended rollout stay the same."""
    if rollout.is_terminal:
        told = rollout.model_copy(update={"trajectory": None})
        assert seen.setdefault(rollout.rollout_id, told) == told


def test_a_stream_continues_over_a_restart(tiny_model: Path, tmp_path: Path) -> None:
    port = port_to_come_back_to()
    slow = group("slow", n=2, turns=1, sleep=2)
    with stub_engine(tiny_model) as engine, RolloutClient(f"http://127.0.0.1:{port}") as client:
        with service([engine.url], tmp_path, port=port) as running:
            client.submit([slow])
            stream = client.stream(slow.rollout_ids(), WAIT_S)
            while client.get("slow.0").state is not RolloutState.RUNNING:
                time.sleep(0.01)
            running.kill()
        with service([engine.url], tmp_path, port=port):
            ended = list(stream)
    assert [rollout.state for rollout in ended] == [RolloutState.DONE] * 2
    assert {rollout.attempt for rollout in ended} == {2}


def test_a_terminated_service_drains_and_the_rest_runs_after_a_restart(
    tiny_model: Path, tmp_path: Path
) -> None:
    traces = Traces()
    groups = [group(f"g{i}", n=4, turns=1, sleep=0.5) for i in range(4)]
    with stub_engine(tiny_model) as engine:
        with service([engine.url], tmp_path, "--run-workers", "2") as running:
            with RolloutClient(running.url) as client:
                client.submit(groups)
                while not client.status().rollouts.get(RolloutState.RUNNING):
                    time.sleep(0.01)
            traces.note(running)
            running.process.send_signal(signal.SIGTERM)
            running.process.wait(WAIT_S)
        with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as db:
            states = Counter(state for (state,) in db.execute("SELECT state FROM rollouts"))
        assert states["done"] >= 2
        assert states.keys() <= {"done", None}
        said = (tmp_path / "service.log").read_text()
        assert f"stopped; {16 - states['done']} rollouts of run" in said
        with service([engine.url], tmp_path) as running, RolloutClient(running.url) as client:
            ended = client.wait(ids_of(groups), WAIT_S)
            traces.note(running)
    assert {rollout.state for rollout in ended} == {RolloutState.DONE}
    traces.assert_none_left()


def test_only_a_rollout_that_ends_the_process_is_abandoned(
    tiny_model: Path, tmp_path: Path
) -> None:
    port = port_to_come_back_to()
    groups = [group("poison", n=1, ends_process=True), group("bystander", n=4, turns=1, sleep=2)]
    for one in groups:
        one.task.agent = "poison"
    options = ["--agent", "tests.faults.agents:Poison"]
    ended: list[Rollout] = []
    with stub_engine(tiny_model) as engine:
        for _ in range(6):
            # A service may end before it is seen healthy: it takes up the rollout as it starts.
            with (
                suppress(ProRLError),
                service([engine.url], tmp_path, *options, port=port) as running,
                RolloutClient(running.url, retry_s=0) as client,
            ):
                client.submit(groups)
                ended = client.wait(ids_of(groups), WAIT_S)
                break
    poison, *bystanders = ended
    assert poison.state is RolloutState.FAILED
    assert poison.error is not None
    assert (poison.error.kind, poison.error.blame) == ("ProcessDied", Blame.AGENT)
    assert not poison.error.retryable
    assert 3 <= poison.attempt <= 5
    assert {one.state for one in bystanders} == {RolloutState.DONE}


def test_an_orderly_stop_uses_up_no_attempt(tiny_model: Path, tmp_path: Path) -> None:
    long, options = group("long", n=1, turns=1, sleep=3), ["--max-attempts", "1", "--drain-s", "0"]
    with stub_engine(tiny_model) as engine:
        with service([engine.url], tmp_path, *options) as running:
            with RolloutClient(running.url) as client:
                client.submit([long])
                while client.get("long.0").state is not RolloutState.RUNNING:
                    time.sleep(0.01)
            running.process.send_signal(signal.SIGTERM)
            running.process.wait(WAIT_S)
        with (
            service([engine.url], tmp_path, *options) as running,
            RolloutClient(running.url) as client,
        ):
            (ended,) = client.wait(["long.0"], WAIT_S)
    assert (ended.state, ended.attempt) == (RolloutState.DONE, 1)


def test_a_second_signal_does_not_wait(tiny_model: Path, tmp_path: Path) -> None:
    with (
        stub_engine(tiny_model) as engine,
        service([engine.url], tmp_path, "--drain-s", "1000") as running,
        RolloutClient(running.url) as client,
    ):
        client.submit([group("g", n=1, sleep=1000)])
        while client.get("g.0").state is not RolloutState.RUNNING:
            time.sleep(0.01)
        running.process.send_signal(signal.SIGTERM)
        while client.status().is_stopping is False:
            time.sleep(0.01)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(WAIT_S) in (0, -signal.SIGTERM)


def test_the_newest_weights_outlive_the_service(tiny_model: Path, tmp_path: Path) -> None:
    content = (tiny_model / "model.safetensors").read_bytes()
    with stub_engine(tiny_model) as engine:
        with service([engine.url], tmp_path) as running, trainer(running.url) as client:
            client.stream_weights([content], after=2)
            running.kill()
        engine.restart()
        with service([engine.url], tmp_path) as running, RolloutClient(running.url) as client:
            assert client.status().policy_version == 3
            (ended, *_) = client.wait(
                [one.rollout_id for one in client.submit([group("g")])], WAIT_S
            )
    assert engine.version == 3
    assert engine.weights == content[8 + int.from_bytes(content[:8], "little") :]
    assert ended.state is RolloutState.DONE
    assert ended.trajectory is not None
    assert set(ended.trajectory.segments[0].policy_versions) <= {3, -1}


def test_a_service_whose_weights_were_removed_waits_for_the_next(
    tiny_model: Path, tmp_path: Path
) -> None:
    content = (tiny_model / "model.safetensors").read_bytes()
    with stub_engine(tiny_model) as engine:
        with service([engine.url], tmp_path) as running, trainer(running.url) as client:
            client.stream_weights([content])
            running.kill()
        engine.restart()
        shutil.rmtree(tmp_path / "journal.sqlite.weights")
        with service([engine.url], tmp_path) as running, trainer(running.url) as client:
            [backend] = client.backends()
            assert "is gone (the trainer's next weights bring it back)" in backend.reason
            assert client.stream_weights([content], after=1).version == 2
            client.submit([group("g")])
            ended = client.wait(group("g").rollout_ids(), WAIT_S)
    assert {one.state for one in ended} == {RolloutState.DONE}


def test_a_push_whose_service_was_killed_while_it_applied_the_difference_is_made_again(
    tiny_model: Path, tmp_path: Path
) -> None:
    port, copy = port_to_come_back_to(), WeightsCopy()
    old, new = bytes(2**27), b"new" + bytes(2**27 - 3)
    directory = tmp_path / "journal.sqlite.weights"
    with (
        stub_engine(tiny_model) as engine,
        ThreadPoolExecutor(1) as other,
        service([engine.url], tmp_path, port=port) as running,
        trainer(running.url) as client,
    ):
        copy.send(client, Content(old), base="", after=0)
        base = client.weights_terms(WeightsQuery()).base
        push = other.submit(copy.send, client, Content(new), base=base, after=1)
        while not [*directory.glob("*.partial")]:
            assert not push.done()
        running.kill()
        assert [*directory.glob("*.partial")]
        with service([engine.url], tmp_path, port=port):
            assert push.result(WAIT_S).version == 2
            assert (engine.version, engine.weights == new) == (2, True)
            kinds = sorted(path.suffix for path in directory.glob("weights-*"))
    assert kinds == [".difference", ".safetensors"]


def test_directories_of_a_killed_service_are_removed_by_the_next(
    tiny_model: Path, tmp_path: Path
) -> None:
    traces = Traces()
    with stub_engine(tiny_model) as engine:
        log = tmp_path / "log"
        with local.service([engine.url], log=log) as running:
            traces.note(running)
            running.kill()
        with local.service([engine.url], log=log):
            pass
    traces.assert_none_left()
