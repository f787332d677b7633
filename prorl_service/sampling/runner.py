"""One sampler at work: carries out the decisions of a `Sampler`.

Submits the groups that it begins, reports ended rollouts to it, releases groups that are not
needed, and writes down its state before reporting it. After a restart it continues where it was.
Decides nothing: `sampler` does.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from pydantic import Field

from prorl_service.errors import Conflict, MetricMissing, NotFound, ProRLError, SamplingFailed
from prorl_service.inference.pool import BackendPool
from prorl_service.rollouts.executor import RolloutExecutor
from prorl_service.rollouts.journal import Journal
from prorl_service.sampling import tables as tables
from prorl_service.sampling.candidates import Candidate, Tally
from prorl_service.sampling.curriculum import CurriculumState
from prorl_service.sampling.head_starts import Success
from prorl_service.sampling.sampler import Sampler
from prorl_service.sampling.tables import AT_THEIR_END, CandidateRow
from prorl_service.schemas import Group, Rollout, WireModel
from prorl_service.schemas.numbers import shown
from prorl_service.schemas.sampling import (
    DifficultyCounts,
    Draw,
    DrawSpec,
    DrawState,
    DroppedGroup,
    SamplerSpec,
    SamplerStatus,
)
from prorl_service.utils.leases import Lease
from prorl_service.utils.tasks import Changes, TaskOwner

log = logging.getLogger(__name__)

RETRY_S = 1.0
"""Seconds between attempts to submit a group while the service takes none."""


class SamplerState(WireModel):
    """State of a sampler in the journal, apart from its candidates."""

    spec: SamplerSpec
    incarnation: str = ""
    draw: Draw | None = None
    dropped: list[DroppedGroup] = Field(default_factory=list)
    """Groups dropped since the draw ended."""
    difficulties: list[DifficultyCounts] = Field(default_factory=list)
    """Counts since the draw ended."""
    curriculum: CurriculumState | None = None
    head_share: float = 1.0
    open_s: float = 0.0
    """Seconds for which the draw had been open, by a clock that does not jump."""
    is_last: bool = False
    tally: Tally = Tally()


class SamplerRunner:
    def __init__(
        self,
        sampler_id: str,
        spec: SamplerSpec,
        journal: Journal,
        executor: RolloutExecutor,
        backends: BackendPool,
        on_expiry: Callable[[], None],
        background: TaskOwner,
        *,
        incarnation: str,
    ) -> None:
        self.core = Sampler(sampler_id, spec, slots=executor.slots, incarnation=incarnation)
        self.lease = Lease(spec.lease_s, on_expiry)
        self._journal = journal
        self._executor = executor
        self._backends = backends
        self._background = background
        self._opened_at = 0.0
        """Monotonic time at which the newest draw was opened."""
        self._status = self.core.status(0)
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()
        self._changes = Changes()
        """Changes of `_status`."""
        self._is_deleted = self._ends_waits = False
        self._submissions: dict[str, asyncio.Task[None]] = {}
        """Submissions in flight, keyed by group."""
        self._releases: dict[str, asyncio.Task[None]] = {}
        """Releases in flight, keyed by group; these groups are not to be submitted any more."""

    # --- for callers ----------------------------------------------------------------------------

    async def status(self, *, after: int, wait_s: float | None) -> SamplerStatus:
        """Returns the status as soon as its revision differs from `after`, or after `wait_s`, or
        when the service stops. Raises `NotFound` if the sampler is deleted meanwhile, and
        `MetricMissing` if its filter wants what no rollout has, and `WeightsRejected` if the open
        draw is for weights that were refused."""
        with suppress(TimeoutError), self.lease.held():
            async with asyncio.timeout(wait_s):
                while self._status.revision == after and not self._ends_waits:
                    await self._changes.wait()
        return self._answer()

    def _answer(self) -> SamplerStatus:
        """Raises like `status`."""
        if self._is_deleted:
            raise unknown_sampler(self.core.sampler_id)
        if (refusal := self.core.refusal) is not None:
            raise MetricMissing(refusal.message, hint=refusal.hint)
        draw = self._status.draw
        if draw is not None and draw.state is DrawState.OPEN:
            self._backends.raise_if_refused(draw.spec.policy_version)
        return self._status

    def end_waits(self) -> None:
        """Makes all calls of `status` return immediately, waiting and future ones."""
        self._ends_waits = True
        self._changes.notify()

    async def add(self, groups: Sequence[Group], *, is_last: bool) -> SamplerStatus:
        """Adds candidates. One that cannot run fails alone, when it is begun. Raises
        `JournalError`."""
        return await self._do(lambda: self.core.add(groups, is_last=is_last))

    async def draw(self, draw_id: str, spec: DrawSpec) -> SamplerStatus:
        """Opens a draw; idempotent. Raises `Conflict` while another is open, and `JournalError`."""

        def open_draw() -> None:
            if self._is_newest(draw_id, spec):
                return
            self._backends.raise_if_refused(spec.policy_version)
            self._opened_at = time.monotonic()
            newest, pushed = self._backends.policy_version, self._backends.pushed_version
            self.core.open_draw(draw_id, spec, version=newest, pushed=pushed)

        return await self._do(open_draw)

    def _is_newest(self, draw_id: str, spec: DrawSpec) -> bool:
        """Returns whether this is the newest draw. Raises `Conflict` if it must not be opened."""
        newest = self.core.draw
        if newest is None:
            return False
        if newest.draw_id == draw_id:
            if newest.spec != spec:
                raise Conflict(f"draw {draw_id!r} was opened with other content")
            self._refuse_withdrawn(newest)
            return True
        if newest.state is DrawState.OPEN:
            raise Conflict(
                f"draw {newest.draw_id!r} is open",
                hint="one draw at a time: wait for its end, or give it a deadline_s",
            )
        return False

    def _refuse_withdrawn(self, draw: Draw) -> None:
        """Raises `Conflict` if the draw has ended and holds tokens of weights that some engine took
        before another refused them."""
        pushed = self._backends.pushed_version
        if draw.state is not DrawState.OPEN and (newer := self.core.newer_than(pushed)):
            raise Conflict(
                f"draw {draw.draw_id!r} holds tokens of version {newer[0].newest_policy_version}, "
                f"the newest weights are {pushed}",
                hint="the others were withdrawn: draw under another id",
            )

    async def _do(self, work: Callable[[], None]) -> SamplerStatus:
        """Does `work`, and returns the status that it leads to once that is written down."""
        self._journal.check_writable()
        self.lease.renew()
        await self._journal.unless_failing(self._step(work))
        return self._answer()

    # --- at work --------------------------------------------------------------------------------

    def restore(self, state: SamplerState, rows: Sequence[CandidateRow]) -> None:
        self.core.draw, self.core.is_last = state.draw, state.is_last
        self.core.tally, self.core.dropped = state.tally, state.dropped
        self.core.difficulties = state.difficulties
        self.core.levels.restore(state.curriculum)
        self.core.head_starts.share = state.head_share
        self._opened_at = time.monotonic() - state.open_s
        for row in rows:
            if row.state in AT_THEIR_END:
                self.core.restore_end(row.name, row.task_id, row.state)
            else:
                self.core.restore(row.candidate())
        wanted = {self._group(one).group_id for one in self.core.under_way()}
        for group_id in self._executor.inflight.group_ids():
            if group_id.startswith(self.core.prefix) and group_id not in wanted:
                self._start_release(group_id, self._executor.inflight.rollout_ids(group_id))

    async def serve(self) -> None:
        self._submit(self.core.under_way())  # after a restart; known groups are joined
        while True:
            await self._step()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds_left()):
                    await self._wake.wait()

    def _seconds_left(self) -> float | None:
        draw = self.core.draw
        if draw is None or draw.state is not DrawState.OPEN or draw.spec.deadline_s is None:
            return None
        return max(0.0, self._opened_at + draw.spec.deadline_s - time.monotonic())

    async def _step(self, work: Callable[[], None] = lambda: None) -> None:
        """Takes one step at a time, so that the status is that of the newest."""
        async with self._lock:
            if self._is_deleted:
                return
            self._wake.clear()
            work()
            self.core.slots = self._executor.slots
            newest, pushed = self._backends.policy_version, self._backends.pushed_version
            self.core.settle(newest, pushed, is_overdue=self._seconds_left() == 0)
            begun = list(self.core.begin())
            released, self.core.released = self.core.released, []
            unread, self.core.head_starts.unread = self.core.head_starts.unread, []
            await self._write_down()
            for group in released:
                self._start_release(group.group_id, group.rollout_ids())
            self._submit(begun)
            for success in unread:
                name = f"read {success.rollout_id}"
                self._background.run_once(self._read(success), name=name, of_one=True)

    async def _read(self, success: Success) -> None:
        """Gives it the texts of its turns, unless its group was released in the meantime."""
        with suppress(ProRLError):
            async for ended in self._executor.ended([success.rollout_id]):
                rollout = await asyncio.to_thread(ended.to_wire)
                turns = rollout.trajectory.turns if rollout.trajectory else []
                success.replies = [turn.text for turn in turns]

    async def _write_down(self) -> None:
        rows = [CandidateRow.of(one) for one in self.core.changed.values()]
        self.core.changed = {}
        status = self.core.status(self._status.revision + 1)
        state = SamplerState(
            spec=self.core.spec,
            incarnation=self.core.incarnation,
            draw=status.draw,
            dropped=self.core.dropped,
            difficulties=self.core.difficulties,
            curriculum=self.core.levels.state(),
            head_share=self.core.head_starts.share,
            open_s=time.monotonic() - self._opened_at,
            is_last=self.core.is_last,
            tally=self.core.tally,
        )
        content = state.model_dump_json().encode()
        await self._journal.write(lambda db: tables.put(db, self.core.sampler_id, content, rows))
        before = self._status.revision
        if not before or status.model_copy(update={"revision": before}) != self._status:
            self._status = status
            self._changes.notify()

    def _group(self, candidate: Candidate) -> Group:
        return self.core.group_of(candidate)

    def _submit(self, begun: Sequence[Candidate]) -> None:
        for one in begun:
            group = self._group(one)
            work = self._submit_one(one.name, one.attempt, group)
            what = f"submit group {group.group_id}"
            task = self._background.run_once(work, name=what, of_one=True)
            _keep(self._submissions, group.group_id, task)

    async def _submit_one(self, name: str, attempt: int, group: Group) -> None:
        """Fails the candidate, and nothing else, if its group cannot be submitted or watched."""
        try:
            await self._submitted(name, attempt, group)
        except Exception as bug:
            error = bug if isinstance(bug, ProRLError) else SamplingFailed(shown(bug))
            log.warning("sampler %s: group %s: %s", self.core.sampler_id, name, error.message)
            self.core.refused(name, attempt, error.info())
            self._wake.set()

    async def _submitted(self, name: str, attempt: int, group: Group) -> None:
        while group.group_id not in self._releases:
            try:
                await self._executor.submit([group])
                break
            except ProRLError as error:
                if not error.retryable:
                    raise
            await asyncio.sleep(RETRY_S)
        else:
            return
        await self._executor.watch(group.rollout_ids(), partial(self._ended, name, attempt))

    def _ended(self, name: str, attempt: int, rollout: Rollout) -> None:
        self.core.rollout_ended(name, attempt, rollout)
        self._wake.set()

    async def _release(self, group_id: str, rollout_ids: Sequence[str]) -> None:
        if submission := self._submissions.get(group_id):  # it might submit the group later
            await asyncio.wait([submission])
        with suppress(ProRLError):  # never submitted, or forgotten already
            await self._executor.cancel(rollout_ids)
            await self._executor.acknowledge([group_id])

    def _start_release(self, group_id: str, rollout_ids: Sequence[str]) -> None:
        work = self._release(group_id, rollout_ids)
        task = self._background.run_once(work, name=f"release group {group_id}", of_one=True)
        _keep(self._releases, group_id, task)

    async def drop(self, on_dropped: Callable[[], None]) -> None:
        """Deletes its state, and writes nothing more. Leaves all as it was on a `JournalError`."""
        async with self._lock:
            sampler_id = self.core.sampler_id
            await self._journal.write(lambda db: tables.drop(db, sampler_id), is_retried=False)
            self._is_deleted = True
            self.end_waits()
            self.lease.end()
            on_dropped()

    async def release(self) -> None:
        """Releases all groups that it began, including those given and not acknowledged. Call it
        after the end of `serve`."""
        for group in map(self._group, self.core.begun()):
            self._start_release(group.group_id, group.rollout_ids())
        await asyncio.gather(*self._releases.values())
        if self.core.incarnation:
            left = partial(tables.ended_groups, prefix=self.core.prefix)
            await self._executor.acknowledge(await self._journal.read(left))


def _keep(
    in_flight: dict[str, asyncio.Task[None]], group_id: str, task: asyncio.Task[None]
) -> None:
    """Keeps the task until it has ended."""
    in_flight[group_id] = task
    task.add_done_callback(lambda _: in_flight.pop(group_id))


def unknown_sampler(sampler_id: str) -> NotFound:
    return NotFound(
        f"there is no sampler {sampler_id!r}",
        hint="PUT /v1/samplers/ID makes one; it ends with its lease, or when it is deleted",
    )
