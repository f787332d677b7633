"""Requests that are spread over fronts which refuse connections, lose answers, or forget."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from itertools import count
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.client import ServiceCallError, WaitTimeout, fronts, requests, retries
from prorl_service.client.cells import places_of, ranking
from prorl_service.client.fronts import Fronts
from prorl_service.client.requests import Request
from prorl_service.client.spreads import Drawing, Polling, Submission
from prorl_service.schemas import Blame, ErrorInfo, Group, GroupIds, Rollout, RolloutState
from prorl_service.schemas.sampling import Draw, DrawSpec, SamplerSpec, SamplerStatus
from tests.server.scored_agent import scored

Fault = Literal["away", "lost", "lost answer", "stopping"]
"""A call that makes no connection; that is lost; whose answer is lost; that is refused."""
KINDS = {
    "away": ("ConnectError", None),
    "lost": ("ReadError", None),
    "lost answer": ("ReadTimeout", None),
    "stopping": ("ServiceStopping", 503),
}
numbers = count()


def failed(fault: Fault) -> ServiceCallError:
    kind, status = KINDS[fault]
    info = ErrorInfo(kind=kind, blame=Blame.SERVICE, message="as it should", retryable=True)
    return ServiceCallError("POST", info, status)


def unknown(what: object) -> ServiceCallError:
    info = ErrorInfo(kind="NotFound", blame=Blame.SERVICE, message=f"no {what}")
    return ServiceCallError("GET", info, 404)


class OneFront:
    """A front that has groups and one sampler, and meets its faults one call after another."""

    def __init__(self, faults: Sequence[Fault] = ()) -> None:
        self.faults = deque(faults)
        self.is_away = False
        self.groups: dict[str, Group] = {}
        self.tries = 0
        self.calls: list[Request[Any]] = []
        self.sampler = SamplerStatus(sampler_id="s", revision=0, **dict.fromkeys(COUNTS, 0))

    async def send(self, request: Request[Any], retry_s: float | None = None) -> Any:
        self.tries += 1
        fault = "away" if self.is_away else self.faults.popleft() if self.faults else None
        if fault not in (None, "lost answer"):
            raise failed(fault)
        self.calls.append(request)
        answer = await self.answer(request)
        if fault is not None:
            raise failed(fault)
        return answer

    async def answer(self, request: Request[Any]) -> Any:
        match request.spread:
            case Submission(groups):
                self.groups |= {one.group_id: one for one in groups}
                return [rollout(one) for group in groups for one in group.rollout_ids()]
            case Drawing(_, draw_id, spec):
                draw = Draw(draw_id=draw_id, spec=spec)
                self.sampler = self.sampler.model_copy(update={"draw": draw, "revision": 1})
            case Polling(_, after, wait_s) if after == self.sampler.revision and wait_s:
                await asyncio.sleep(0.01)
                self.sampler = self.sampler.model_copy(update={"revision": after + 1})
        if isinstance(request.body, GroupIds):
            for one in request.body.group_ids:
                self.groups.pop(one, None)
            return None
        return self.sampler

    async def check_known(self, rollout_id: str) -> None:
        if self.is_away:
            raise failed("away")
        if rollout_id.rpartition(".")[0] not in self.groups:
            raise unknown(rollout_id)

    async def stream(
        self, rollout_ids: Sequence[str], timeout_s: float
    ) -> AsyncGenerator[Rollout, None]:
        for one in rollout_ids:
            if one.endswith("never.0"):
                await asyncio.sleep(timeout_s)
                raise WaitTimeout([one], timeout_s)
            yield rollout(one)


COUNTS = (
    *("wanted", "waiting", "deferred", "under_way", "informative", "given", "uninformative"),
    *("failed", "stale", "decided_early", "carried"),
)


def rollout(rollout_id: str) -> Rollout:
    return Rollout(
        rollout_id=rollout_id,
        group_id=rollout_id.rpartition(".")[0],
        task_id="t",
        agent="a",
        index=0,
        state=RolloutState.DONE,
        created_at=0,
    )


def fronts_of(*each: OneFront, retry_s: float = 60) -> tuple[dict[str, OneFront], Fronts]:
    """Returns the fronts under addresses that no other test has."""
    named = {f"http://front-{next(numbers)}": one for one in each}
    return named, Fronts(named, retry_s)


def group_for(named: dict[str, OneFront], front: OneFront) -> Group:
    """Returns a group whose first front is `front`."""
    names = (f"g{number}" for number in count())
    return scored(next(one for one in names if named[ranking(named, one)[0]] is front), 1)


@pytest.fixture(autouse=True, scope="module")
def no_delays() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retries, "FIRST_DELAY_S", 0.001)
        patch.setattr(retries, "LAST_DELAY_S", 0.001)
        yield


faults = st.lists(st.sampled_from(["away", "lost", "lost answer", "stopping"]), max_size=4)


@given(st.lists(faults, min_size=2, max_size=3), st.sets(st.integers(0, 99), min_size=1))
def test_a_submitted_group_is_at_one_front_whatever_is_lost(
    scripts: list[list[Fault]], names: set[int]
) -> None:
    groups = [scored(f"g{one}", 1) for one in sorted(names)]
    named, cells = fronts_of(*map(OneFront, scripts))

    async def submit_twice() -> None:
        for _ in range(2):
            submitted = await cells.send(requests.submit(groups, "refuse"))
            assert [one.group_id for one in submitted] == [one.group_id for one in groups]

    asyncio.run(submit_twice())
    at = Counter(name for one in named.values() for name in one.groups)
    assert at == {one.group_id: 1 for one in groups}


async def test_only_a_front_without_a_connection_gets_its_new_groups_elsewhere() -> None:
    first, second = OneFront(), OneFront()
    named, cells = fronts_of(first, second)
    group = group_for(named, first)
    first.faults.extend(["lost", "away", "away"])
    await cells.send(requests.submit([group], "refuse"))
    assert (list(first.groups), list(second.groups)) == ([group.group_id], [])
    first.is_away = True
    others = [scored(f"other{number}", 1) for number in range(20)]
    await cells.send(requests.submit(others, "refuse"))
    assert sorted(second.groups) == sorted(one.group_id for one in others)


async def test_a_group_waits_for_the_front_that_may_have_it() -> None:
    first, second = OneFront(["lost answer"]), OneFront()
    named, cells = fronts_of(first, second, retry_s=0.05)
    group = group_for(named, first)
    first.faults.extend(["away"] * 1000)
    with pytest.raises(ServiceCallError, match="ConnectError"):
        await cells.send(requests.submit([group], "refuse"))
    first.faults = deque(["away"] * 3)
    await cells.send(requests.submit([group], "refuse"))
    assert (list(first.groups), list(second.groups)) == ([group.group_id], [])


async def test_new_groups_avoid_a_front_that_cost_time(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = OneFront(), OneFront()
    named, cells = fronts_of(first, second)
    first.is_away = True
    for tries, slow_s in ((1, 9.0), (2, -1.0), (2, 9.0)):
        monkeypatch.setattr(fronts, "SLOW_S", slow_s)
        group = group_for(named, first)
        await cells.send(requests.submit([group], "refuse"))
        places_of(named).forget([group.group_id])
        assert first.tries == tries


async def test_all_fronts_away_is_an_error_after_the_retries() -> None:
    first, second = OneFront(), OneFront()
    _, cells = fronts_of(first, second, retry_s=0.05)
    first.is_away = second.is_away = True
    with pytest.raises(ServiceCallError, match="ConnectError"):
        await cells.send(requests.submit([scored("g", 1)], "refuse"))


async def test_a_group_of_an_unknown_place_is_looked_for_in_the_order_of_its_ranking() -> None:
    first, second = OneFront(), OneFront()
    named, cells = fronts_of(first, second)
    group = group_for(named, first)
    second.groups[group.group_id] = group
    received = cells.stream(
        group.rollout_ids(), 10, {url: one.stream for url, one in named.items()}, _id_of
    )
    assert [one.rollout_id async for one in received] == group.rollout_ids()
    assert places_of(named).find(group.group_id) == list(named)[1]


async def test_what_a_lost_front_may_have_is_not_missing_but_waited_for() -> None:
    first, second = OneFront(), OneFront()
    named, cells = fronts_of(first, second)
    group = group_for(named, first)
    first.groups[group.group_id] = group
    first.is_away = True
    each = {url: one.stream for url, one in named.items()}
    with pytest.raises(WaitTimeout):
        [one async for one in cells.stream(group.rollout_ids(), 0.05, each, _id_of)]
    asyncio.get_running_loop().call_later(0.05, setattr, first, "is_away", False)
    received = cells.stream(group.rollout_ids(), 10, each, _id_of)
    assert [one.rollout_id async for one in received] == group.rollout_ids()


async def test_what_no_front_has_is_missing() -> None:
    named, cells = fronts_of(OneFront(), OneFront())
    each = {url: one.stream for url, one in named.items()}
    with pytest.raises(ServiceCallError) as raised:
        [one async for one in cells.stream(["g.0"], 10, each, _id_of)]
    assert raised.value.http_status == 404


async def test_a_stream_that_ends_too_late_names_the_pending_rollouts_of_all_fronts() -> None:
    first, second = OneFront(), OneFront()
    named, cells = fronts_of(first, second)
    each = {url: one.stream for url, one in named.items()}
    first.groups = {"ends": scored("ends", 1)}
    second.groups = {"never": scored("never", 1), "after-never": scored("after-never", 1)}
    ids = ["ends.0", "never.0", "after-never.0"]
    received = cells.stream(ids, 0.5, each, _id_of)
    assert (await anext(received)).rollout_id == "ends.0"
    with pytest.raises(WaitTimeout) as raised:
        await anext(received)
    assert raised.value.pending == ["never.0", "after-never.0"]


async def test_acknowledged_groups_are_forgotten_where_they_are() -> None:
    first, second = OneFront(), OneFront()
    named, cells = fronts_of(first, second)
    groups = [group_for(named, first), group_for(named, second)]
    await cells.send(requests.submit(groups, "refuse"))
    second.groups["other"] = scored("other", 1)
    await cells.send(requests.acknowledge([groups[0].group_id]))
    assert [len(one.calls) for one in named.values()] == [2, 1]
    await cells.send(requests.acknowledge(["other"]))  # not known here: everywhere
    assert [list(one.groups) for one in named.values()] == [[], [groups[1].group_id]]
    assert places_of(named).find(groups[0].group_id) is None


async def test_a_draw_waits_for_a_lost_front_as_long_as_calls_are_retried() -> None:
    first, second = OneFront(), OneFront()
    _, cells = fronts_of(first, second, retry_s=0.1)
    await cells.send(requests.create_sampler("s", SamplerSpec()))
    status = await cells.send(requests.open_draw("s", "d", DrawSpec(target=3)))
    assert status.draw is not None
    assert status.draw.spec.target == 3
    assert sorted(_target(one) for one in (first, second)) == [1, 2]
    second.is_away = True
    revisions = [status.revision]

    async def poll() -> None:
        while True:
            news = await cells.send(requests.sampler("s", revisions[-1], 10))
            revisions.append(news.revision)

    with pytest.raises(ServiceCallError, match="ConnectError"):
        await asyncio.wait_for(poll(), 10)
    assert len(revisions) > 3  # of the other front meanwhile


def _target(front: OneFront) -> int:
    assert front.sampler.draw is not None
    return front.sampler.draw.spec.target


def _id_of(one: Rollout) -> str:
    return one.rollout_id
