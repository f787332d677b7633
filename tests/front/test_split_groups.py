"""Groups whose service dies in the middle: each member's result is of one run, and no member that
has ended is begun again."""

import asyncio
import random
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from prorl_service import local
from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.schemas import Group, Rollout, RolloutState
from tests.front.odd_service import odd_service
from tests.front.one_run_agent import ONE_RUN, Runs
from tests.front.test_front import at_all, ends, ids_of, until_empty
from tests.server.application import Settings, serving, until
from tests.waits import condition

pytestmark = pytest.mark.processes

WAIT_S = 240


@contextmanager
def many_at_once(name: str, tmp_path: Path) -> Iterator[local.LocalProcess]:
    """Starts a service that continues what its journal has."""
    options = [
        *("--agent", ONE_RUN, "--sandbox", "process", "--warm-sandboxes", "0"),
        *("--run-workers", "96", "--init-workers", "8"),
        *("--announce", str(tmp_path / "services" / f"{name}.json")),
        *("--journal", str(tmp_path / f"{name}.sqlite"), "--resume"),
    ]
    with local.service([], log=tmp_path / f"{name}.log", options=options) as running:
        yield running
    assert "Traceback" not in running.log.read_text()


@pytest.fixture
def services(tmp_path: Path) -> Iterator[list[local.LocalProcess]]:
    with ExitStack() as stack:
        yield [stack.enter_context(many_at_once(name, tmp_path)) for name in ("a", "b")]


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, agents=(ONE_RUN,))


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "runs")


async def index_of_owner(services: Sequence[local.LocalProcess], count: int) -> int:
    """Returns which service has all `count` rollouts in RUN or ended."""

    async def begun() -> list[int]:
        found = await at_all(services)
        return [one[RolloutState.RUNNING] + one[RolloutState.DONE] for one in found]

    return (await until(begun, lambda counts: count in counts)).index(count)


@pytest.mark.parametrize("size", [2, 8, 48])
async def test_only_members_that_have_not_ended_begin_again(
    services: list[local.LocalProcess], settings: Settings, runs: Runs, size: int
) -> None:
    short, long = range(0, size, 2), range(1, size, 2)
    group = runs.group("g", [3.0 if index in long else 0.0 for index in range(size)])
    async with serving(settings) as url, AsyncRolloutClient(url) as client:
        await client.submit([group])
        before = await client.wait([group.rollout_id(index) for index in short], WAIT_S)
        owner = await index_of_owner(services, size)
        services[owner].kill()
        ended = await client.wait(group.rollout_ids(), WAIT_S)
        assert [ended[index] for index in short] == before
        assert [await client.get(one.rollout_id) for one in ended] == ended
        await client.acknowledge(["g"])
        await until_empty(services[1 - owner])
    for one in ended:
        runs.assert_one_run(one)
    assert len({one.result_id for one in ended}) == size
    assert {len(runs.of(group.rollout_id(index))) for index in short} == {1}
    assert {len(runs.of(group.rollout_id(index))) for index in long} == {2}
    assert [one.attempt for one in ended] == [1, 2] * (size // 2)


async def test_results_that_a_front_has_yet_to_get_outlive_a_group_that_is_given_up(
    settings: Settings, tmp_path: Path, runs: Runs
) -> None:
    group = runs.group("g", [0.0, 60.0, *[1.5] * 6])
    with many_at_once("a", tmp_path) as running:
        async with serving(settings) as url, AsyncRolloutClient(url) as client:
            await client.submit([group])
            before = await client.wait(["g.0"], WAIT_S)
            await index_of_owner([running], 8)
            async with AsyncRolloutClient(running.url) as direct:
                await direct.cancel(["g.1"])  # the front leaves, and comes back
                await direct.wait([group.rollout_id(index) for index in range(2, 8)], WAIT_S)
            ended = await client.wait(ids_of([group])[:1] + ids_of([group])[2:], WAIT_S)
            assert ended[:1] == before
            await client.cancel(["g.1"])
    for one in ended:
        runs.assert_one_run(one)
        assert len(runs.of(one.rollout_id)) == 1


async def test_a_service_that_joins_two_runs_is_left(
    settings: Settings, tmp_path: Path, runs: Runs
) -> None:
    group = runs.group("g", [0.0] * 4)
    (tmp_path / "services").mkdir(mode=0o700)
    async with (
        odd_service(tmp_path / "services" / "odd.json") as odd,
        serving(settings) as url,
        AsyncRolloutClient(url) as client,
    ):
        odd.mixes_results = True
        await until(odd.was_told)
        await client.submit([group])
        await condition(lambda: odd.group_ids == {"g"})
        with many_at_once("a", tmp_path):
            ended = await client.wait(group.rollout_ids(), WAIT_S)
    for one in ended:
        runs.assert_one_run(one)
    assert {one.attempt for one in ended} == {2}


async def done_at(client: AsyncRolloutClient, groups: Sequence[Group]) -> list[Rollout]:
    """Returns what has ended at the front by now."""
    found = [await client.get(one) for one in ids_of(groups)]
    return [one for one in found if one.is_terminal]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_no_result_is_of_two_runs_whatever_dies_when(
    settings: Settings, tmp_path: Path, runs: Runs, seed: int
) -> None:
    chance = random.Random(seed)
    sizes = [2, 48, chance.randint(2, 48)]
    groups = [
        runs.group(f"g{number}", [chance.choice([0, chance.uniform(0, 12)]) for _ in range(size)])
        for number, size in enumerate(sizes)
    ]
    before: dict[str, tuple[Rollout, int]] = {}
    """Rollouts that had ended before a death, by id, with the number of their runs."""
    faults = 4
    with ExitStack() as stack:
        running = {
            name: stack.enter_context(many_at_once(name, tmp_path)) for name in ("a", "b", "c")
        }
        async with serving(settings) as url, AsyncRolloutClient(url) as client:
            await client.submit(groups)
            for _ in range(faults):
                await asyncio.sleep(chance.uniform(0, 4))
                for one in await done_at(client, groups):
                    before.setdefault(one.rollout_id, (one, len(runs.of(one.rollout_id))))
                name = chance.choice([*running])
                if chance.random() < 0.3:
                    stop_for_a_while(running[name], stack, chance)
                    continue
                running[name].kill()
                if chance.random() < 0.5 and len(running) > 1:
                    del running[name]
                else:
                    starting = many_at_once(name, tmp_path)
                    running[name] = await asyncio.to_thread(stack.enter_context, starting)
            ended = await client.wait(ids_of(groups), WAIT_S)
            again = [await client.get(one.rollout_id) for one in ended]
    assert again == ended
    for one in ended:
        runs.assert_one_run(one)
        assert len(runs.of(one.rollout_id, "sampled")) <= 1 + faults
        old, begun = before.get(one.rollout_id, (one, len(runs.of(one.rollout_id))))
        assert old == one
        assert len(runs.of(one.rollout_id)) == begun, f"{one.rollout_id} had ended"
    assert len({one.result_id for one in ended}) == sum(sizes)
    assert set(ends(settings).values()) == {1}


def stop_for_a_while(running: local.LocalProcess, stack: ExitStack, chance: random.Random) -> None:
    """Stops the process, longer than the front waits or not."""
    running.process.send_signal(signal.SIGSTOP)
    delay_s = chance.choice([1, 20])
    asyncio.get_running_loop().call_later(delay_s, running.process.send_signal, signal.SIGCONT)
    stack.callback(running.process.send_signal, signal.SIGCONT)


async def test_a_service_does_the_wanted_members_of_a_group_and_no_others(
    settings: Settings, runs: Runs
) -> None:
    own = replace(settings, services=None, journal=None)
    group = runs.group("g", [0.0, 60.0, 0.0, 60.0, 0.0])
    async with serving(own) as url, AsyncRolloutClient(url) as client:
        part = group.model_copy(update={"only": [0, 1, 3]})
        assert [one.index for one in await client.submit([part])] == [0, 1, 3]
        await client.wait(["g.0"], WAIT_S)
        smaller = group.model_copy(update={"only": [0, 3]})
        assert [one.index for one in await client.submit([smaller])] == [0, 3]
        assert (await client.get("g.1")).state is RolloutState.CANCELLED
        for other in ([2], [0, 2], None):
            with pytest.raises(ServiceCallError, match="other content"):
                await client.submit([group.model_copy(update={"only": other})])
        with pytest.raises(ServiceCallError, match=r"no rollout 'g\.2'"):
            await client.get("g.2")
        await client.cancel(["g.3"])
        await client.acknowledge(["g"])
        assert not (await client.status()).rollouts
    assert not runs.of("g.2")
    assert not runs.of("g.4")
