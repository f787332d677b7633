"""What is on the shelf survives acknowledgement, kill -9 and restarts of real services."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest

from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.net.credentials import authorization
from prorl_service.schemas import Group, RolloutState
from prorl_service.schemas.arrays import PACKED_MEDIA_TYPE
from prorl_service.schemas.views import GroupQuery, RolloutQuery
from prorl_service.testing import StubEngine
from tests.faults.processes import WAIT_S, stub_engine
from tests.server.scored_agent import SCORED, scored

pytestmark = pytest.mark.processes


@pytest.fixture
def engine(tiny_model: Path) -> Iterator[StubEngine]:
    with stub_engine(tiny_model) as stub:
        yield stub


def service(
    engine: StubEngine, tmp_path: Path, *options: str
) -> AbstractContextManager[local.LocalProcess]:
    return local.service(
        [engine.url],
        log=tmp_path / "service.log",
        options=[
            *("--journal", str(tmp_path / "journal.sqlite")),
            *("--agent", SCORED, "--sandbox", "process", *options),
        ],
    )


def finish(client: RolloutClient, *groups: Group) -> None:
    client.submit(groups)
    client.wait([one for group in groups for one in group.rollout_ids()], WAIT_S)


def packed(url: str, rollout_id: str) -> bytes:
    headers = {"Accept": PACKED_MEDIA_TYPE, **authorization(url)}
    answer = httpx.get(f"{url}/v1/rollouts/{rollout_id}", headers=headers)
    assert answer.is_success, answer.text
    return answer.content


def test_acknowledged_rollouts_are_there_after_a_kill(engine: StubEngine, tmp_path: Path) -> None:
    with service(engine, tmp_path, "--run", "r") as first, RolloutClient(first.url) as client:
        finish(client, scored("kept", 0.5, None), scored("here", 1))
        before = packed(first.url, "kept.0")
        text = client.text("kept.0")
        client.acknowledge(["kept"])
        first.kill()
    with (
        service(engine, tmp_path, "--run", "r", "--resume") as second,
        RolloutClient(second.url) as client,
    ):
        assert packed(second.url, "kept.0") == before
        again = client.text("kept.0")
        assert (again.turns, again.siblings, again.task) == (text.turns, text.siblings, text.task)
        assert (again.rollout.reward, again.rollout.run) == (0.5, "r")
        rows = client.rollouts().rollouts
        assert {one.rollout_id for one in rows} == {"kept.0", "kept.1", "here.0"}
        assert {one.has_content for one in rows} == {True}
        (version,) = client.training().versions
        assert (version.done, version.failed, version.groups) == (2, 1, 2)
        finish(client, scored("more", 1))
        assert len(client.rollouts().rollouts) == 4


def test_a_new_run_sees_the_previous_one(engine: StubEngine, tmp_path: Path) -> None:
    for run, reward in (("first", 0.0), ("second", 1.0)):
        with service(engine, tmp_path, "--run", run) as one, RolloutClient(one.url) as client:
            finish(client, scored("g", reward), scored(f"only-{run}", None))
            client.acknowledge(["g", f"only-{run}"])
    with service(engine, tmp_path, "--run", "third") as one, RolloutClient(one.url) as client:
        assert len(client.groups().groups) == 4
        assert {row.run for row in client.groups(GroupQuery(run="first")).groups} == {"first"}
        failed = client.rollouts(RolloutQuery(state=[RolloutState.FAILED])).rollouts
        assert [row.group_id for row in failed] == ["only-second", "only-first"]
        assert client.text("g.0").rollout.reward == 1.0, "the latest of that name"
        assert client.text("g.0", run="first").rollout.reward == 0.0
        assert client.tokens("g.0", run="first").length > 0
        assert client.training().versions == []
        assert client.training(run="first").versions[0].mean_reward == 0.0
        finish(client, scored("g", 0.5))
        assert client.text("g.0").rollout.reward == 0.5, "this run's own"


def test_a_service_starts_with_a_damaged_shelf(engine: StubEngine, tmp_path: Path) -> None:
    with service(engine, tmp_path, "--run", "r") as first, RolloutClient(first.url) as client:
        finish(client, scored("gone", 1), scored("here", 1))
        client.acknowledge(["gone"])
    shelf = tmp_path / "journal.sqlite.shelf"
    shelf.write_bytes(b"garbage" * 4096)
    with (
        service(engine, tmp_path, "--run", "r", "--resume") as second,
        RolloutClient(second.url) as client,
    ):
        assert [one.rollout_id for one in client.rollouts().rollouts] == ["here.0"]
    warnings = [
        line for line in (tmp_path / "service.log").read_text().splitlines() if "WARNING" in line
    ]
    assert len([line for line in warnings if "shelf" in line]) == 1, warnings


def test_a_service_that_stops_tells_its_listeners(engine: StubEngine, tmp_path: Path) -> None:
    with service(engine, tmp_path) as running, RolloutClient(running.url, retry_s=0) as client:
        events = client.events()
        assert next(events).event == "hello"
        running.process.terminate()
        assert [one.event for one in events][-1] == "end"
        assert running.process.wait(WAIT_S) is not None
