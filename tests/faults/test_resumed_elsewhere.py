"""A service that is killed and resumes what a sandbox does not hold: agents of several
conversations, damaged turns, tools with effects outside, and agents that it lacks."""

import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.resume.resumer import REPEATED
from prorl_service.schemas import Group, Limits, Message, Rollout, RolloutState, Task
from tests.faults.processes import WAIT_S, ids_of, port_to_come_back_to
from tests.faults.test_resume import TURNS, Counting, counting, outputs
from tests.pipeline.test_continuations import assert_same, flipped, without_one
from tests.programs import prorl

pytestmark = pytest.mark.processes

AGENTS = (
    "--agent=tests.pipeline.test_continuations:Changing",
    "--agent=tests.faults.agents:Dialling",
)


@contextmanager
def service(
    engine: Counting, directory: Path, port: int | None = None
) -> Iterator[local.LocalProcess]:
    options = ["--journal", str(directory / "journal.sqlite"), "--resume", *AGENTS]
    options += ["--sandbox", "process"]
    log = directory / "service.log"
    with local.service([engine.url], log=log, port=port, options=options) as running:
        yield running


def group(name: str, agent: str, **data: str) -> Group:
    messages = [Message(role="user", content=f"Count, {name}.")]
    task = Task(task_id=name, agent=agent, messages=messages, data={**data})
    return Group(group_id=name, task=task, n=2, limits=Limits(max_turns=TURNS))


def changing() -> list[Group]:
    """Groups whose agents go on, compact, and return to an earlier conversation."""
    rng = random.Random(1)
    plans = ["".join(rng.choice("gcr") for _ in range(5)) for _ in range(4)]
    return [group(f"{number}-{plan}", "changing", plan=plan) for number, plan in enumerate(plans)]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Counting]:
    with counting(tmp_path / "model", latency_s=0.2) as engine:
        yield engine


@pytest.fixture
def expected(engine: Counting, tmp_path: Path) -> dict[str, Rollout]:
    """Returns the ends of `changing()` in a service that nobody kills."""
    (tmp_path / "whole").mkdir()
    with service(engine, tmp_path / "whole") as running, RolloutClient(running.url) as client:
        client.submit(changing())
        ended = client.wait(ids_of(changing()), WAIT_S)
    return {one.rollout_id: one for one in ended}


def nothing(db: sqlite3.Connection, rng: random.Random) -> None: ...


@pytest.mark.parametrize("damage", [nothing, flipped, without_one])
def test_any_conversation_goes_on_after_kills_or_begins_anew(
    engine: Counting,
    expected: dict[str, Rollout],
    tmp_path: Path,
    damage: Callable[[sqlite3.Connection, random.Random], None],
) -> None:
    rng, port = random.Random(0), port_to_come_back_to()
    engine.latency_s = 0.6  # no rollout ends before the first kills, on a busy machine either
    for pause in (1.0, 1.2, 1.4):
        with service(engine, tmp_path, port) as running:
            with RolloutClient(running.url) as client:
                client.submit(changing())
            time.sleep(pause)
            running.kill()
        with sqlite3.connect(tmp_path / "journal.sqlite") as db:
            if db.execute("SELECT number FROM turns").fetchone():
                damage(db, rng)
    engine.latency_s = 0.05
    with service(engine, tmp_path, port) as running, RolloutClient(running.url) as client:
        ended = client.wait(ids_of(changing()), WAIT_S)
    for rollout in ended:
        assert_same(rollout, expected[rollout.rollout_id])
    went_on = any(one.turn for rollout in ended for one in rollout.resumed)
    assert went_on or damage is without_one  # which leaves no rollout whole
    log = (tmp_path / "service.log").read_text()
    assert ("from scratch" in log) == (damage is not nothing)


def test_effects_outside_that_may_have_come_twice_are_told(
    engine: Counting, tmp_path: Path
) -> None:
    port, dialled = port_to_come_back_to(), tmp_path / "dialled"
    groups = [group("g", "dialling", dialled=str(dialled))]
    with service(engine, tmp_path, port) as running:
        with RolloutClient(running.url) as client:
            client.submit(groups)
        while not dialled.exists() or len(dialled.read_text().splitlines()) < 6:
            time.sleep(0.01)
        running.kill()
    with service(engine, tmp_path, port) as running, RolloutClient(running.url) as client:
        ended = client.wait(ids_of(groups), WAIT_S)
    made = len(dialled.read_text().splitlines())
    told = sum(one.repeated_calls for rollout in ended for one in rollout.resumed)
    assert made > 2 * (TURNS - 1), "the kill came while a call was made"
    assert made <= 2 * (TURNS - 1) + told
    for rollout in ended:
        assert rollout.state is RolloutState.DONE, rollout.error
        noted = [output.startswith(REPEATED) for output in outputs(rollout)]
        assert sum(noted) == sum(one.repeated_calls > 0 for one in rollout.resumed)


def test_a_service_without_the_agents_of_its_journal_does_not_start(
    engine: Counting, tmp_path: Path
) -> None:
    """Nothing is lost: with the agents, all goes on."""
    port = port_to_come_back_to()
    groups = [*changing(), group("g", "dialling", dialled=str(tmp_path / "dialled"))]
    with service(engine, tmp_path, port) as running:
        with RolloutClient(running.url) as client:
            client.submit(groups)
        running.kill()
    journal = ["--journal", str(tmp_path / "journal.sqlite"), "--resume", "--sandbox", "process"]
    refused = prorl("serve", "--backend", engine.url, *journal)
    assert refused.returncode == 2
    assert "8 rollouts of agent 'changing'" in refused.stderr
    assert "2 rollouts of agent 'dialling'" in refused.stderr
    assert "--abandon-agent changing --abandon-agent dialling" in refused.stderr
    assert "Traceback" not in refused.stderr
    with service(engine, tmp_path, port) as running, RolloutClient(running.url) as client:
        ended = client.wait(ids_of(groups), WAIT_S)
    assert {one.state for one in ended} == {RolloutState.DONE}
