"""The ways to get informative groups, step by step, out of one service: three on the plain client,
and the service's own sampler.

Each takes the tasks in the same order and, except for the batches, has as many rollouts in flight
as the sampler. While the trainer trains, batches and re-queueing have none in flight.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import islice

from bench.dapo import workload
from bench.dapo.workload import Plan
from prorl_service.client import AsyncRolloutClient, RolloutClient
from prorl_service.client.sampling import SamplerClient
from prorl_service.schemas import Group, Rollout
from prorl_service.schemas.sampling import DrawSpec, SamplerSpec

WAIT_S = 300.0


class Fate(StrEnum):
    """Result of an attempt at a group."""

    GIVEN = "given"
    UNINFORMATIVE = "uninformative"
    """Ended with all rewards equal."""
    WASTED = "wasted"
    """Cancelled, or thrown away, before or after its end."""
    LEFT = "left"
    """Still in flight when the run ends, for the step that would come next."""


class Way(ABC):
    lends_engines = False
    """True if model calls are held while the trainer trains, as if it used the engines' GPUs."""

    @abstractmethod
    async def draw(self, step: int) -> list[list[Rollout]]:
        """Returns the informative groups of one step."""

    @abstractmethod
    def fates(self, turns: Mapping[str, int]) -> dict[str, Fate]:
        """Returns the fates, at the end of the run, of all attempts that were begun and not given.
        `turns`: model calls of each."""

    async def close(self) -> None:
        return


class _OnClient(Way):
    """A way on the plain client."""

    def __init__(self, client: AsyncRolloutClient, plan: Plan, candidates: Iterator[Group]) -> None:
        self._client = client
        self._plan = plan
        self._candidates = candidates
        self._uninformative: set[str] = set()

    def _sort(self, rollouts: list[Rollout], informative: list[list[Rollout]]) -> None:
        """Adds a whole group to the informative ones, or remembers that it is not."""
        if workload.is_informative([float(str(one.reward)) for one in rollouts]):
            informative.append(rollouts)
        else:
            self._uninformative.add(rollouts[0].group_id)

    def fates(self, turns: Mapping[str, int]) -> dict[str, Fate]:
        ended = self._uninformative
        return {one: Fate.UNINFORMATIVE if one in ended else Fate.WASTED for one in turns}


class Batches(_OnClient):
    """DAPO as first written: runs a batch to its end and filters it, until there are enough groups.
    The surplus of the last batch is thrown away."""

    def __init__(
        self, client: AsyncRolloutClient, plan: Plan, candidates: Iterator[Group], batch: int
    ) -> None:
        super().__init__(client, plan, candidates)
        self._batch = batch

    async def draw(self, step: int) -> list[list[Rollout]]:
        informative: list[list[Rollout]] = []
        while len(informative) < self._plan.target:
            for rollouts in await self._run_batch():
                self._sort(rollouts, informative)
        return informative[: self._plan.target]

    async def _run_batch(self) -> list[list[Rollout]]:
        groups = [workload.attempted(one, 1) for one in islice(self._candidates, self._batch)]
        await self._client.submit(groups)
        ids = [rollout_id for group in groups for rollout_id in group.rollout_ids()]
        rollouts = iter(await self._client.wait(ids, WAIT_S))
        return [list(islice(rollouts, group.n)) for group in groups]


class Refill(_OnClient):
    """Keeps slots full until there are enough informative groups. Groups still in flight then run
    to their end and are thrown away, while the trainer continues; or they are cancelled and their
    tasks start from scratch, first, in the next step (`requeue`)."""

    def __init__(
        self, client: AsyncRolloutClient, plan: Plan, candidates: Iterator[Group], *, requeue: bool
    ) -> None:
        super().__init__(client, plan, candidates)
        self._requeue = requeue
        self._to_begin_anew: deque[Group] = deque()
        self._under_way: dict[str, tuple[Group, list[Rollout]]] = {}
        """Groups in flight, except those to be thrown away, each with its ended rollouts."""
        self._unfinished = 0
        """Number of unfinished rollouts, including those to be thrown away."""
        self._ends: asyncio.Queue[Rollout] = asyncio.Queue()
        self._streams: dict[str, asyncio.Task[None]] = {}
        self._surplus_given_up: asyncio.Future[None] = asyncio.Future()
        """Done once the surplus is abandoned, which happens while the trainer trains."""
        self._surplus_given_up.set_result(None)

    async def draw(self, step: int) -> list[list[Rollout]]:
        await self._surplus_given_up
        informative: list[list[Rollout]] = []
        while len(informative) < self._plan.target:
            await self._fill()
            rollouts = await self._next_group()
            if rollouts is not None:
                self._sort(rollouts, informative)
        self._surplus_given_up = asyncio.create_task(self._give_up_surplus())
        return informative

    async def _fill(self) -> None:
        begun = []
        while self._unfinished < self._plan.slots:
            group = self._to_begin_anew.popleft() if self._to_begin_anew else self._new()
            self._under_way[group.group_id] = (group, [])
            self._unfinished += group.n
            begun.append(group)
        if begun:
            await self._client.submit(begun)
        for group in begun:
            self._streams[group.group_id] = asyncio.create_task(self._stream(group))

    def _new(self) -> Group:
        return workload.attempted(next(self._candidates), 1)

    async def _stream(self, group: Group) -> None:
        async for rollout in self._client.stream(group.rollout_ids(), WAIT_S):
            self._unfinished -= 1
            self._ends.put_nowait(rollout)
        del self._streams[group.group_id]

    async def _next_group(self) -> list[Rollout] | None:
        """Waits until the next rollout ends; returns its group if it was the group's last."""
        rollout = await self._ends.get()
        group, ended = self._under_way.get(rollout.group_id, (None, []))
        ended.append(rollout)
        if group is None or len(ended) < group.n:
            return None
        del self._under_way[group.group_id]
        return ended

    async def _give_up_surplus(self) -> None:
        groups = [group for group, _ in self._under_way.values()]
        self._under_way.clear()
        if not self._requeue or not groups:
            return
        streams = [
            self._streams.pop(one.group_id) for one in groups if one.group_id in self._streams
        ]
        await self._cancel(streams)
        await self._client.cancel([one for group in groups for one in group.rollout_ids()])
        self._unfinished = 0
        self._ends = asyncio.Queue()
        self._to_begin_anew.extendleft(map(_begun_anew, reversed(groups)))

    async def _cancel(self, streams: Sequence[asyncio.Task[None]]) -> None:
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)

    async def close(self) -> None:
        await self._surplus_given_up
        await self._cancel(list(self._streams.values()))


def _attempt(group_id: str) -> int:
    return int(group_id.rpartition(":")[2])


def _begun_anew(group: Group) -> Group:
    return workload.attempted(group, _attempt(group.group_id) + 1)


class Service(Way):
    """The sampler of the service, which carries over groups in flight."""

    def __init__(
        self, url: str, plan: Plan, candidates: Iterator[Group], seed: int, *, is_lent: bool
    ) -> None:
        self.lends_engines = is_lent
        self._client = RolloutClient(url)
        self._plan = plan
        self._seed = seed
        spec = SamplerSpec(surplus="carry")
        self._sampler = SamplerClient(self._client, "s", spec, candidates)

    async def draw(self, step: int) -> list[list[Rollout]]:
        spec = DrawSpec(target=self._plan.target)
        _, groups = await asyncio.to_thread(self._sampler.draw, f"d{step}", spec)
        return groups

    def fates(self, turns: Mapping[str, int]) -> dict[str, Fate]:
        """Derives the fates, since a sampler reports only counts: an attempt that is not the task's
        last was abandoned; one that had all its turns and was not given is uninformative, or
        left."""
        newest = {one.rpartition(":")[0]: one for one in sorted(turns, key=_attempt)}
        return {one: self._fate(one, newest.values(), turns[one]) for one in turns}

    def _fate(self, group_id: str, newest: Collection[str], turns: int) -> Fate:
        if group_id not in newest:
            return Fate.WASTED
        ends = workload.ends(self._seed, group_id, self._plan.n)
        is_whole = turns >= sum(one.turns for one in ends)
        if is_whole and not workload.is_informative([one.reward for one in ends]):
            return Fate.UNINFORMATIVE
        return Fate.LEFT

    async def close(self) -> None:
        await asyncio.to_thread(self._client.delete_sampler, "s")
        self._client.close()
