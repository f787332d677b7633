"""The samplers of the service: each `Sampler`'s decisions, done.

Submits what a sampler begins, tells it what ended, forgets what nobody needs, and writes down its
state before anybody is told of it. After a restart every sampler goes on where it was. Decides
nothing: `sampler` does.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from pydantic import Field

from prorl_service.background import Background
from prorl_service.errors import Conflict, JournalError, NotFound, ProRLError
from prorl_service.leases import Lease
from prorl_service.pipeline import sampler_tables as tables
from prorl_service.pipeline.accepted import AcceptedRollouts
from prorl_service.pipeline.journal import Journal
from prorl_service.pipeline.sampler import Candidate, Sampler, Tally
from prorl_service.pipeline.sampler_tables import AT_THEIR_END, CandidateRow
from prorl_service.sampler_schemas import (
    Draw,
    DrawSpec,
    DrawState,
    DroppedGroup,
    SamplerSpec,
    SamplerStatus,
)
from prorl_service.schemas import Group, Rollout, WireModel

log = logging.getLogger(__name__)

RETRY_S = 1.0
"""Between tries to submit a group while the service takes none."""


class _State(WireModel):
    """Of a sampler, as it is written down beside its candidates."""

    spec: SamplerSpec
    draw: Draw | None = None
    dropped: list[DroppedGroup] = Field(default_factory=list)
    """Since the draw ended."""
    opened_at: float = 0.0
    is_last: bool = False
    tally: Tally = Tally()


class RunningSampler:
    def __init__(
        self,
        sampler_id: str,
        spec: SamplerSpec,
        journal: Journal,
        pipeline: AcceptedRollouts,
        version: Callable[[], int],
        on_expiry: Callable[[], None],
    ) -> None:
        """`version`: of the newest weights."""
        self.core = Sampler(sampler_id, spec, slots=pipeline.slots)
        self.lease = Lease(spec.lease_s, on_expiry)
        self._journal = journal
        self._pipeline = pipeline
        self._version = version
        self._opened_at = 0.0
        """Unix time of the newest draw."""
        self._status = self.core.status(0)
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        """Replaced at each change."""
        self._is_deleted = False
        self._submissions: dict[str, asyncio.Task[None]] = {}
        """By group."""
        self._released: set[str] = set()
        """Groups that are not to be submitted any more."""
        self._releases: set[asyncio.Task[None]] = set()

    # --- for callers ----------------------------------------------------------------------------

    async def status(self, *, after: int, wait_s: float | None) -> SamplerStatus:
        """As soon as its revision is another than `after`, or when `wait_s` are over. Raises
        `NotFound` when it is deleted meanwhile."""
        with suppress(TimeoutError), self.lease.held():
            async with asyncio.timeout(wait_s):
                while self._status.revision == after and not self._is_deleted:
                    await self._changed.wait()
        if self._is_deleted:
            raise _unknown(self.core.sampler_id)
        return self._status

    async def add(self, groups: Sequence[Group], *, is_last: bool) -> SamplerStatus:
        """Raises `InvalidRequest`, `JournalError`."""
        await self._pipeline.check(groups)
        return await self._do(lambda: self.core.add(groups, is_last=is_last))

    async def draw(self, draw_id: str, spec: DrawSpec) -> SamplerStatus:
        """Idempotent. Raises `Conflict` while another is open, `JournalError`."""
        newest = self.core.draw
        if newest is not None and newest.draw_id == draw_id:
            if newest.spec != spec:
                raise Conflict(f"draw {draw_id!r} was opened with other content")
            return self._status
        if newest is not None and newest.state is DrawState.OPEN:
            raise Conflict(
                f"draw {newest.draw_id!r} is open",
                hint="one draw at a time: wait for its end, or give it a deadline_s",
            )

        def open_draw() -> None:
            self._opened_at = time.time()
            self.core.open_draw(draw_id, spec, version=self._version())

        return await self._do(open_draw)

    async def _do(self, work: Callable[[], None]) -> SamplerStatus:
        if self._journal.failure is not None:
            raise JournalError(self._journal.failure, hint="is its disk full?")
        self.lease.renew()
        work()
        await self._step()
        return self._status

    # --- at work --------------------------------------------------------------------------------

    async def restore(self, state: _State, rows: Sequence[CandidateRow]) -> None:
        self.core.draw, self.core.is_last = state.draw, state.is_last
        self.core.tally, self.core.dropped = state.tally, state.dropped
        self._opened_at = state.opened_at
        for row in rows:
            if row.state in AT_THEIR_END:
                self.core.restore_end(row.name, row.task_id, row.state)
            else:
                self.core.restore(row.candidate())
        wanted = {self._group(one).group_id for one in self.core.under_way()}
        mine = f"{self.core.sampler_id}:"
        for group_id in self._pipeline.group_ids():
            if group_id.startswith(mine) and group_id not in wanted:
                self._start_release(group_id, self._pipeline.rollout_ids(group_id))

    async def serve(self) -> None:
        self._submit(self.core.under_way())  # a restarted service's; known groups are joined
        while True:
            await self._step()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds_left()):
                    await self._wake.wait()

    def _seconds_left(self) -> float | None:
        draw = self.core.draw
        if draw is None or draw.state is not DrawState.OPEN or draw.spec.deadline_s is None:
            return None
        return max(0.0, self._opened_at + draw.spec.deadline_s - time.time())

    async def _step(self) -> None:
        async with self._lock:
            self._wake.clear()
            self.core.slots = self._pipeline.slots
            self.core.settle(self._version(), is_overdue=self._seconds_left() == 0)
            begun = list(self.core.begin())
            released, self.core.released = self.core.released, []
            await self._write_down()
            for group in released:
                self._start_release(group.group_id, group.rollout_ids())
            self._submit(begun)

    async def _write_down(self) -> None:
        rows = [CandidateRow.of(one) for one in self.core.changed.values()]
        self.core.changed = {}
        status = self.core.status(self._status.revision + 1)
        state = _State(
            spec=self.core.spec,
            draw=status.draw,
            dropped=self.core.dropped,
            opened_at=self._opened_at,
            is_last=self.core.is_last,
            tally=self.core.tally,
        )
        content = state.model_dump_json().encode()
        await self._journal.write(lambda db: tables.put(db, self.core.sampler_id, content, rows))
        before = self._status.revision
        if not before or status.model_copy(update={"revision": before}) != self._status:
            self._status = status
            self._changed.set()
            self._changed = asyncio.Event()

    def _group(self, candidate: Candidate) -> Group:
        return candidate.attempted(self.core.sampler_id)

    def _submit(self, begun: Sequence[Candidate]) -> None:
        for one in begun:
            group = self._group(one)
            task = asyncio.create_task(self._submit_one(one.name, one.attempt, group))
            self._submissions[group.group_id] = task
            task.add_done_callback(partial(self._submitted, group.group_id))

    def _submitted(self, group_id: str, task: "asyncio.Task[None]") -> None:
        del self._submissions[group_id]
        self._note_bug(task)

    async def _submit_one(self, name: str, attempt: int, group: Group) -> None:
        while group.group_id not in self._released:
            try:
                await self._pipeline.submit([group])
                break
            except ProRLError as error:
                if not error.retryable:
                    log.warning("sampler %s: %s", self.core.sampler_id, error.message)
                    self.core.refused(name, attempt, error.info())
                    self._wake.set()
                    return
            await asyncio.sleep(RETRY_S)
        else:
            return
        await self._pipeline.watch(group.rollout_ids(), partial(self._ended, name, attempt))

    def _ended(self, name: str, attempt: int, rollout: Rollout) -> None:
        self.core.rollout_ended(name, attempt, rollout)
        self._wake.set()

    async def _release(self, group_id: str, rollout_ids: Sequence[str]) -> None:
        self._released.add(group_id)
        if submission := self._submissions.get(group_id):  # half-way, it would be run after all
            await asyncio.wait([submission])
        self._released.discard(group_id)
        with suppress(ProRLError):  # never submitted, or forgotten already
            await self._pipeline.cancel(rollout_ids)
            await self._pipeline.acknowledge([group_id])

    def _start_release(self, group_id: str, rollout_ids: Sequence[str]) -> None:
        task = asyncio.create_task(self._release(group_id, rollout_ids))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)
        task.add_done_callback(self._note_bug)

    def _note_bug(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (bug := task.exception()) is not None:
            log.error("sampler %s: %r", self.core.sampler_id, bug, exc_info=bug)

    async def close(self) -> None:
        self.lease.end()
        tasks = [*self._submissions.values(), *self._releases]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def delete(self) -> None:
        """Releases what it began and has not given. `serve` has ended."""
        self.lease.end()
        self._is_deleted = True
        self._changed.set()
        for group in map(self._group, self.core.begun()):
            self._start_release(group.group_id, group.rollout_ids())
        await asyncio.gather(*self._releases)


class Samplers:
    """`async with`, inside the journal's and the pipeline's."""

    def __init__(
        self, journal: Journal, pipeline: AcceptedRollouts, version: Callable[[], int]
    ) -> None:
        self.background = Background()
        self._journal = journal
        self._pipeline = pipeline
        self._version = version
        self._running: dict[str, RunningSampler] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def __aenter__(self) -> "Samplers":
        for sampler_id, content in await self._journal.read(tables.samplers):
            state = _State.model_validate_json(content)
            sampler = self._new(sampler_id, state.spec)
            rows = await self._journal.read(partial(tables.candidates, sampler_id=sampler_id))
            await sampler.restore(state, rows)
            self._start(sampler)
        return self

    async def __aexit__(self, *_: object) -> None:
        """They go on when the service does."""
        await self.background.close()
        await asyncio.gather(*(one.close() for one in self._running.values()))

    async def create(self, sampler_id: str, spec: SamplerSpec) -> SamplerStatus:
        """Idempotent. Raises `Conflict` if it exists with another spec."""
        known = self._running.get(sampler_id)
        if known is None:
            known = self._new(sampler_id, spec)
            self._start(known)
        elif known.core.spec != spec:
            raise Conflict(
                f"sampler {sampler_id!r} exists with another specification",
                hint="delete it first, or take another id",
            )
        return await known.status(after=0, wait_s=None)

    def get(self, sampler_id: str) -> RunningSampler:
        """Raises `NotFound`."""
        if sampler_id not in self._running:
            raise _unknown(sampler_id)
        return self._running[sampler_id]

    async def delete(self, sampler_id: str) -> None:
        """Cancels what it began and has not given. Raises `NotFound`."""
        sampler = self.get(sampler_id)
        del self._running[sampler_id]
        task = self._tasks.pop(sampler_id)
        self.background.cancel(task)
        await asyncio.wait([task])
        await self._journal.write(lambda db: tables.drop(db, sampler_id))
        await sampler.delete()

    def _new(self, sampler_id: str, spec: SamplerSpec) -> RunningSampler:
        sampler = RunningSampler(
            sampler_id,
            spec,
            self._journal,
            self._pipeline,
            self._version,
            lambda: self._expired(sampler_id),
        )
        self._running[sampler_id] = sampler
        return sampler

    def _start(self, sampler: RunningSampler) -> None:
        sampler_id = sampler.core.sampler_id
        self._tasks[sampler_id] = self.background.start(
            sampler.serve(), name=f"sampler {sampler_id}"
        )

    def _expired(self, sampler_id: str) -> None:
        log.warning("sampler %s: nobody asked for it any more", sampler_id)
        self._expiring = asyncio.create_task(self.delete(sampler_id))


def _unknown(sampler_id: str) -> NotFound:
    return NotFound(
        f"there is no sampler {sampler_id!r}",
        hint="PUT /v1/samplers/ID makes one; it ends with its lease, or when it is deleted",
    )
