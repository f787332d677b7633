"""The owner of a directory of services, and the owner of the engines at a service."""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from prorl_service import local
from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.errors import ProRLError
from prorl_service.front.claim import CLAIM, Claimant, DirectoryClaim
from prorl_service.schemas import BackendSpec, Rollout, Stage
from prorl_service.testing import StubEngine
from prorl_service.tokens.chat import ChatFormat
from tests.front.conftest import service
from tests.front.test_front import ids_of
from tests.programs import prorl
from tests.server.application import Settings, serving, until
from tests.server.scored_agent import scored

WAIT_S = 120


def claimed_elsewhere(directory: Path) -> Path:
    """Writes the claim of a front on another machine, and returns its path."""
    directory.mkdir(mode=0o700, exist_ok=True)
    other = Claimant(
        claim_id="other",
        host="node7",
        pid=1,
        machine="another",
        process_start="1",
        since="2026-11-22 20:00:00+00:00",
    )
    (directory / CLAIM).write_text(other.model_dump_json())
    return directory / CLAIM


@contextmanager
def renewed(claim: Path) -> Iterator[None]:
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(0.1):
            os.utime(claim)

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.processes
def test_a_second_front_is_refused_by_one_line_that_names_the_first(tmp_path: Path) -> None:
    directory = tmp_path / "services"
    with service("a", tmp_path), local.front(directory, [], log=tmp_path / "front.log") as first:
        second = prorl("front", "--services", directory, "--port", "0", "--journal", "none")
    assert second.returncode == 2
    lines = [one for one in second.stderr.splitlines() if one.startswith("prorl: ")]
    assert len(lines) == 1
    assert f"belong to the front of process {first.pid} on " in lines[0]
    assert ", since 20" in lines[0]
    assert "Traceback" not in second.stderr
    assert not (directory / CLAIM).exists()


@pytest.mark.processes
def test_a_killed_front_blocks_no_other(tmp_path: Path) -> None:
    directory = tmp_path / "services"
    with service("a", tmp_path):
        with local.front(directory, [], log=tmp_path / "front.log") as first:
            first.kill()
        assert (directory / CLAIM).exists()
        with local.front(directory, [], log=tmp_path / "front.log"):
            pass


@pytest.mark.slow
def test_a_claim_of_another_machine_holds_while_it_is_renewed(tmp_path: Path) -> None:
    claim = claimed_elsewhere(tmp_path / "services")
    with renewed(claim), pytest.raises(ProRLError, match="front of process 1 on node7, since 2026"):
        DirectoryClaim(claim.parent, stale_s=60)
    taken_over = DirectoryClaim(claim.parent, stale_s=1)
    taken_over.release()
    assert not claim.exists()


def test_the_owner_of_a_directory_s_engines_outlives_its_fronts(tmp_path: Path) -> None:
    owners = set()
    for _ in range(2):
        claim = DirectoryClaim(tmp_path / "services")
        owners.add(claim.owner)
        claim.release()
    assert len(owners) == 1


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_directory_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    directory = tmp_path / "services"
    directory.mkdir()
    directory.chmod(mode)
    with pytest.raises(ProRLError, match="can be written by other users") as refused:
        DirectoryClaim(directory)
    assert refused.value.hint == "chmod go-w"


@pytest.mark.processes
async def test_a_front_that_lost_its_claim_does_no_more_work(
    services: list[local.LocalProcess], settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    assert settings.services is not None
    async with serving(settings) as url, AsyncRolloutClient(url) as client:
        claimed_elsewhere(settings.services)
        await until(client.status, lambda status: status.failure)
        status = await client.status()
        assert status.failure is not None
        assert "now belong to the front of process 1 on node7" in status.failure
        assert status.workers[Stage.RUN] == 0
    assert (settings.services / CLAIM).exists(), "the claim of the other front was removed"
    assert "Traceback" not in caplog.text


@pytest.mark.processes
async def test_two_fronts_do_not_touch_each_others_engines(
    engine: StubEngine,
    settings: Settings,
    tiny_model: Path,
    chat: ChatFormat,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "prorl_service.front")
    other_directory = tmp_path / "other" / "services"
    other_directory.mkdir(parents=True)
    mine = [scored(f"mine{i}", 0, 1, sleep=0.5) for i in range(6)]
    other = scored("other", 0, 1)
    async with StubEngine(tiny_model, lambda _: [7, 8, chat.end_of_turn_id]) as other_engine:
        others = replace(
            settings,
            services=other_directory,
            journal=tmp_path / "other.sqlite",
            backends=(BackendSpec(url=other_engine.url),),
        )
        with service("a", tmp_path) as shared:
            announced = (tmp_path / "services" / "a.json").read_text()
            async with serving(others) as other_url, AsyncRolloutClient(other_url) as second:
                async with serving(settings) as url, AsyncRolloutClient(url) as first:
                    async with AsyncRolloutClient(shared.url) as direct:
                        await until(direct.backends, lambda found: len(found) == 1)
                    (other_directory / "a.json").write_text(announced)
                    await second.submit([other])
                    await first.submit(mine)
                    ended = await first.wait(ids_of(mine), WAIT_S)
                    assert (await second.status()).workers[Stage.RUN] == 0
                assert other_engine.calls == 0
                assert sampled(ended) == {(5, 6)}
                # The service refuses for its engines or, while it has some, for its rollouts;
                # each change of the reason is logged once.
                refusals = [one for one in caplog.messages if "OwnedByAnother: it has" in one]
                assert refusals
                assert not any(one == following for one, following in pairwise(refusals))
                async with AsyncRolloutClient(shared.url) as direct:
                    (backend,) = await direct.backends()
                    await direct.remove_backend(backend.backend_id)
                assert sampled(await second.wait(ids_of([other]), WAIT_S)) == {(7, 8)}


def sampled(rollouts: list[Rollout]) -> set[tuple[int, ...]]:
    trajectories = [one.trajectory for one in rollouts]
    assert None not in trajectories, [one.error for one in rollouts]
    return {tuple(one.segments[0].response_ids[:2]) for one in trajectories if one}


@pytest.mark.processes
async def test_engines_do_not_join_a_service_with_rollouts_of_another_front(
    engine: StubEngine, tmp_path: Path
) -> None:
    group = scored("g", 0, 1, sleep=1000).model_copy(update={"owner": "front-1"})
    with service("a", tmp_path) as running:
        async with AsyncRolloutClient(running.url) as client:
            first = await client.add_backend(engine.url, owner="front-1")
            assert first.owner == "front-1"
            await client.submit([group])
            await client.remove_backend(first.backend_id)
            with pytest.raises(ServiceCallError, match="rollouts of front 'front-1'"):
                await client.add_backend(engine.url, owner="front-2")
            await client.add_backend(engine.url, owner="front-1")
            foreign = group.model_copy(update={"group_id": "h", "owner": "front-2"})
            with pytest.raises(ServiceCallError, match="engines of front 'front-1'"):
                await client.submit([foreign])
            await client.cancel(group.rollout_ids())
