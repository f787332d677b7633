"""Journals that belong to one run each: no other run joins them silently."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from prorl_service.client import AsyncRolloutClient
from prorl_service.errors import JournalError
from prorl_service.schemas import BackendSpec, BackendState, RolloutState
from prorl_service.schemas.sampling import SamplerSpec
from prorl_service.testing import StubEngine, safetensors
from tests.programs import ran
from tests.server.application import Settings, connected, group, serving, until
from tests.trainers import async_trainer


@pytest.fixture
def settings(engine: StubEngine, tmp_path: Path) -> Settings:
    return Settings(
        run="first",
        journal=tmp_path / "journal.sqlite",
        backends=(BackendSpec(url=engine.url),),
        sandbox="process",
    )


async def leave_something(settings: Settings, engine: StubEngine) -> None:
    """Leaves an ended group, an unfinished one, a sampler and weights."""
    async with serving(settings) as url, async_trainer(url) as client:
        assert (await client.status()).run == "first"
        await client.submit([group("ended", n=2)])
        await client.wait(["ended.0", "ended.1"], 60)
        await client.create_sampler("s", SamplerSpec())
        await client.stream_weights([safetensors(b"trained")], after=56)
        engine.latency_s = 3600
        await client.submit([group("unfinished", n=2)])
    engine.latency_s = 0


@pytest.mark.processes
async def test_the_state_of_another_run_is_refused_with_its_description(
    settings: Settings, engine: StubEngine
) -> None:
    await leave_something(settings, engine)
    engine.restart()
    with pytest.raises(JournalError) as refusal:
        async with serving(replace(settings, run="second")):
            pass
    assert refusal.value.message.endswith(
        "journal.sqlite holds run first: "
        "1 unfinished group, 1 ended group, 1 sampler, weights of version 57 of stub"
    )
    assert "--resume" in refusal.value.hint
    with pytest.raises(JournalError, match="holds run first, not second"):
        async with serving(replace(settings, run="second", resume=True)):
            pass
    assert engine.weights == b"", "a service that did not start loaded weights"


@pytest.mark.processes
async def test_resume_continues_the_run_that_the_journal_holds(
    settings: Settings, engine: StubEngine
) -> None:
    await leave_something(settings, engine)
    async with connected(replace(settings, run=None, resume=True)) as client:
        status = await client.status()
        assert (status.run, status.policy_version) == ("first", 57)
        ended = await client.wait(["unfinished.0", "unfinished.1"], 60)
        assert {one.state for one in ended} == {RolloutState.DONE}
        assert (await client.sampler("s")).sampler_id == "s"


async def run_of(settings: Settings) -> str:
    async with serving(settings) as url, AsyncRolloutClient(url) as client:
        return (await client.status()).run


@pytest.mark.slow
async def test_a_journal_that_holds_nothing_takes_any_run(
    settings: Settings, engine: StubEngine
) -> None:
    unnamed = replace(settings, run=None, resume=True)
    async with serving(unnamed) as url, AsyncRolloutClient(url) as client:
        named_by_itself = (await client.status()).run
        await client.submit([group("g")])
        await client.wait(["g.0"], 60)
        await client.acknowledge(["g"])
    assert await run_of(unnamed) == named_by_itself
    assert await run_of(settings) == "first" != named_by_itself
    assert await run_of(replace(settings, run="second")) == "second"


async def test_a_resumed_run_keeps_its_weights_from_another_model(
    settings: Settings, engine: StubEngine
) -> None:
    await leave_something(settings, engine)
    engine.restart()
    engine.model_id = "another"
    async with serving(replace(settings, resume=True)) as url, AsyncRolloutClient(url) as client:
        refusal = "weights of version 57 are for 'stub'"
        await until(client.backends, lambda found: refusal in found[0].reason)
        (backend,) = await client.backends()
        assert backend.state is BackendState.DOWN
        assert engine.weights == b""


@pytest.mark.processes
def test_every_start_has_a_journal_of_its_own_unless_its_run_is_named(tmp_path: Path) -> None:
    """Holds whatever the port is, 0 included."""
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    script = (
        "from prorl_service.server.settings import RunOptions\n"
        "for run in (None, None, 'mine'): print(RunOptions(run=run).named()[1])"
    )
    done = ran(sys.executable, "-c", script, env=environment, check=True)
    first, second, mine = done.stdout.split()
    assert first != second
    assert {Path(one).parent for one in (first, second, mine)} == {tmp_path / "prorl"}
    assert Path(mine).name == "mine.sqlite"


def left(directory: Path) -> list[str]:
    return [path.name for path in directory.glob("journal*")]


@pytest.mark.slow
async def test_a_journal_without_any_write_is_removed_at_the_end(
    settings: Settings, tmp_path: Path
) -> None:
    await run_of(settings)
    assert left(tmp_path) == []
    async with serving(settings) as url, AsyncRolloutClient(url) as client:
        await client.submit([group("g")])
        await client.wait(["g.0"], 60)
        await client.acknowledge(["g"])
    assert "journal.sqlite" in left(tmp_path)
