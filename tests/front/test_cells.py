"""Two cells as one service: each front with a service and an engine of its own."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from itertools import count, islice
from pathlib import Path

import pytest

from prorl_service import local
from prorl_service.client import (
    AsyncRolloutClient,
    RolloutClient,
    ServiceCallError,
    cells,
    fronts,
)
from prorl_service.client.sampling import SamplerClient
from prorl_service.errors import ProRLError
from prorl_service.schemas import BackendSpec, Group, Rollout, RolloutState, WeightsQuery
from prorl_service.schemas.sampling import Draw, DrawSpec, DrawState, SamplerSpec, SamplerStatus
from prorl_service.testing import StubEngine, safetensors
from prorl_service.tokens.chat import ChatFormat
from tests.front.conftest import service
from tests.front.test_front import WAIT_S, assert_done, at, ids_of
from tests.front.test_restart import front
from tests.server.application import Settings, serving, until
from tests.server.scored_agent import SCORED, scored
from tests.trainers import async_trainer, trainer

pytestmark = pytest.mark.processes


@pytest.fixture
async def engines(tiny_model: Path, chat: ChatFormat) -> AsyncIterator[list[StubEngine]]:
    """Engines of the cells a and b, and one more."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                StubEngine(tiny_model, lambda _: [5, 6, chat.end_of_turn_id])
            )
            for _ in range(3)
        ]


@pytest.fixture
def both(tmp_path: Path) -> Iterator[list[local.LocalProcess]]:
    """The services of the cells."""
    with ExitStack() as stack:
        yield [stack.enter_context(service("s", tmp_path / name)) for name in "ab"]


@pytest.fixture
async def urls(
    both: list[local.LocalProcess], engines: list[StubEngine], tmp_path: Path
) -> AsyncIterator[list[str]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(serving(cell(tmp_path / name, engine)))
            for name, engine in zip("ab", engines, strict=False)
        ]


def cell(directory: Path, engine: StubEngine) -> Settings:
    return Settings(
        services=directory / "services",
        agents=(SCORED,),
        backends=(BackendSpec(url=engine.url),),
        journal=directory / "front.sqlite",
    )


def groups_of(
    urls: Sequence[str], url: str, number: int, *, name: str = "g", sleep: float = 0.0
) -> list[Group]:
    """Returns groups whose first front is the one at `url`."""
    groups = (scored(f"{name}-{i}", 0, 1, sleep=sleep) for i in count())
    own = (one for one in groups if cells.ranking(urls, one.group_id)[0] == url)
    return list(islice(own, number))


async def rollouts_at(urls: Sequence[str]) -> list[int]:
    counts = []
    for url in urls:
        async with AsyncRolloutClient(url) as client:
            counts.append(sum((await client.status()).rollouts.values()))
    return counts


async def test_groups_are_spread_and_found_by_clients_that_did_not_submit_them(
    urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = [*groups_of(urls, urls[0], 3), *groups_of(urls, urls[1], 2)]
    async with AsyncRolloutClient(",".join(urls)) as client:
        submitted = await client.submit(groups)
        assert [one.rollout_id for one in submitted] == ids_of(groups)
        assert_done(await client.wait(ids_of(groups), WAIT_S), groups)
        summaries = [one async for one in client.summaries(ids_of(groups), WAIT_S)]
        assert {one.rollout_id for one in summaries} == set(ids_of(groups))
        assert not any(one.trajectory for one in summaries)
    assert await rollouts_at(urls) == [6, 4]
    monkeypatch.setattr(cells, "_shared", {})  # as in another process
    async with AsyncRolloutClient(",".join(urls[::-1])) as client:
        assert (await client.status()).rollouts == {RolloutState.DONE: 10}
        assert_done(await client.wait(ids_of(groups), WAIT_S), groups)
    for method in ("get", "text", "cancel", "acknowledge"):
        monkeypatch.setattr(cells, "_shared", {})
        await asyncio.to_thread(ask, ",".join(urls), groups, method)
    assert await rollouts_at(urls) == [0, 0]


def ask(url: str, groups: Sequence[Group], method: str) -> None:
    """Asks for all groups with a client that knows none of their places."""
    ids = ids_of(groups)
    with RolloutClient(url) as client:
        if method == "get":
            assert_done([client.get(one) for one in ids], groups)
            with pytest.raises(ServiceCallError, match="404"):
                client.get("unknown.0")
        elif method == "text":
            assert [client.text(one).rollout.rollout_id for one in ids] == ids
            with pytest.raises(
                ProRLError, match="GET /v1/rollouts is answered by one front: name one"
            ):
                client.rollouts()
        elif method == "cancel":
            assert [one.rollout_id for one in client.cancel(ids)] == ids
        else:
            client.acknowledge([one.group_id for one in groups])


async def test_a_lost_front_gets_no_new_groups_and_ends_its_own_once_it_is_back(
    both: list[local.LocalProcess],
    engines: list[StubEngine],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fronts, "SLOW_S", WAIT_S)  # on a busy machine, a refusal may take a second
    async with (
        front(tmp_path / "a", engines[0]) as first,
        front(tmp_path / "b", engines[1]) as second,
    ):
        urls = [first.url, second.url]
        async with AsyncRolloutClient(",".join(urls)) as client:
            of_first = groups_of(urls, urls[0], 2, sleep=4)
            of_second = groups_of(urls, urls[1], 1)
            await client.submit([*of_first, *of_second])
            await until_runs(both[0])
            first.kill()
            waiting = asyncio.create_task(client.wait(ids_of([*of_first, *of_second]), WAIT_S))
            moved = groups_of(urls, urls[0], 2, name="moved")
            await client.submit([*moved, *of_second])
            assert_done(await client.wait(ids_of(moved), WAIT_S), moved)
            assert not waiting.done()
            async with front(tmp_path / "a", engines[0], port_of(first.url)):
                ended = await waiting
                assert_done(ended, [*of_first, *of_second])
                assert {one.attempt for one in ended} == {1}
                await client.submit([*of_first, *moved])  # again, where they are
                later = groups_of(urls, urls[0], 1, name="later")
                await client.submit(later)
                assert_done(await client.wait(ids_of(later), WAIT_S), later)
                assert await rollouts_at(urls) == [6, 6]


@asynccontextmanager
async def losing_first_answer(url: str) -> AsyncIterator[str]:
    """Passes connections on to `url`, but closes the first one when its answer comes."""
    connections = count()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_first = next(connections) == 0
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", port_of(url))
        try:
            if is_first:
                to_writer.write(await reader.readuntil(b'"refuse"}'))
                await to_reader.read(1)
                return
            await asyncio.gather(copy(reader, to_writer), copy(to_reader, writer))
        finally:
            to_writer.close()
            writer.close()

    async with await asyncio.start_server(relay, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(65536):
        writer.write(piece)
    writer.close()


async def test_a_submission_whose_answer_is_lost_stays_in_its_cell(urls: list[str]) -> None:
    async with losing_first_answer(urls[0]) as first:
        named = [first, urls[1]]
        groups = groups_of(named, first, 2)
        async with AsyncRolloutClient(",".join(named)) as client:
            await client.submit(groups)
            assert_done(await client.wait(ids_of(groups), WAIT_S), groups)
    assert await rollouts_at(urls) == [4, 0]


async def test_a_draw_waits_for_a_front_that_is_lost_meanwhile(
    both: list[local.LocalProcess], engines: list[StubEngine], tmp_path: Path
) -> None:
    candidates = (scored(f"c{i}", 0, 1, sleep=1, task_id=f"t{i}") for i in count())

    def draw(url: str) -> tuple[Draw, list[list[Rollout]]]:
        with (
            RolloutClient(url) as client,
            SamplerClient(client, "s", SamplerSpec(), candidates) as sampler,
        ):
            return sampler.draw("d", DrawSpec(target=6))

    async with (
        front(tmp_path / "a", engines[0]) as first,
        front(tmp_path / "b", engines[1]) as second,
    ):
        drawing = asyncio.create_task(asyncio.to_thread(draw, f"{first.url},{second.url}"))
        await until_runs(both[0])
        first.kill()
        async with front(tmp_path / "a", engines[0], port_of(first.url)):
            drawn, rollouts = await drawing
    assert drawn.state is DrawState.COMPLETE
    assert len({one.candidate for one in drawn.groups}) == 6
    assert [[one.reward for one in group] for group in rollouts] == [[0, 1]] * 6
    assert {one.attempt for group in rollouts for one in group} == {1}


async def until_runs(running: local.LocalProcess) -> None:
    async def runs() -> bool:
        return (await at(running))[RolloutState.RUNNING] > 0

    await until(runs)


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


async def test_a_draw_is_split_over_the_cells(urls: list[str]) -> None:
    kinds = ((1, 1), (0, 1), (0, 0), (0, 1))
    candidates = (scored(f"c{i}", *kinds[i % 4], task_id=f"t{i}") for i in count())
    seen: list[SamplerStatus] = []

    def train() -> list[tuple[Draw, list[list[Rollout]]]]:
        with (
            RolloutClient(",".join(urls)) as client,
            SamplerClient(client, "s", SamplerSpec(), candidates, seen.append) as sampler,
        ):
            return [sampler.draw(f"d{step}", DrawSpec(target=5)) for step in range(2)]

    draws = await asyncio.to_thread(train)
    names = [group.candidate for draw, _ in draws for group in draw.groups]
    assert len(set(names)) == len(names) == 10
    for draw, groups in draws:
        assert (draw.state, draw.spec.target) == (DrawState.COMPLETE, 5)
        assert [[one.reward for one in group] for group in groups] == [[0, 1]] * 5
    assert seen[-1].given == 10
    places = cells.places_of(urls)
    at_each = Counter(places.find(cells.candidate_key("s", one)) for one in names)
    assert set(at_each) == set(urls)
    assert set(at_each.values()) <= {4, 5, 6}
    for url in urls:
        async with AsyncRolloutClient(url) as client:
            with pytest.raises(ServiceCallError, match="404"):
                await client.sampler("s")


async def test_weights_go_to_all_cells_under_one_version(
    urls: list[str], engines: list[StubEngine], tmp_path: Path
) -> None:
    (tmp_path / "model.safetensors").write_bytes(safetensors(b"shared"))
    async with async_trainer(urls[1]) as alone:
        await alone.load_weights(str(tmp_path))

    def send() -> None:
        with trainer(",".join(urls), retry_s=1) as client:
            newest = client.weights_terms(WeightsQuery()).newest
            file = safetensors(b"weights")
            report = client.stream_weights([file[:70], file[70:]], after=newest)
            assert (report.version, len(report.applied)) == (2, 2)
            assert [one.weights for one in engines[:2]] == [b"weights"] * 2
            assert len(client.load_weights(str(tmp_path), after=2).applied) == 2
            assert [one.version for one in engines[:2]] == [3, 3]
            with pytest.raises(ProRLError, match="an iterator only once"):
                client.stream_weights(iter([b"weights"]))

    await asyncio.to_thread(send)
    async with AsyncRolloutClient(",".join(urls), retry_s=1) as client:
        assert {one.url for one in await client.backends()} == {one.url for one in engines[:2]}


async def test_an_engine_belongs_to_one_cell(urls: list[str], engines: list[StubEngine]) -> None:
    more = engines[2].url
    owner = cells.ranking(urls, cells.engine_key(more))[0]

    async def engines_at(url: str) -> set[str]:
        async with AsyncRolloutClient(url) as client:
            return {one.url for one in await client.backends()}

    async with AsyncRolloutClient(",".join(urls)) as client:
        added = await client.add_backend(more)
        assert [more in await engines_at(url) for url in urls] == [url == owner for url in urls]
        await client.remove_backend(added.backend_id)
        assert not any([more in await engines_at(url) for url in urls])
        with pytest.raises(ServiceCallError, match="404"):
            await client.remove_backend(added.backend_id)
        await client.health()
        status = await client.status()
    assert (len(status.backends), len(status.services)) == (2, 2)


async def test_health_names_the_front_that_does_not_answer(
    urls: list[str], unused_tcp_port: int
) -> None:
    lost = f"http://127.0.0.1:{unused_tcp_port}"
    async with AsyncRolloutClient(f"{urls[0]},{lost}", retry_s=0) as client:
        with pytest.raises(ServiceCallError, match=f"{lost}/health"):
            await client.health()
        with pytest.raises(ServiceCallError, match=f"{lost}/v1/status"):
            await client.status()
