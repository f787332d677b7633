"""Accepted groups, for callers: submit, wait, cancel, acknowledge.

Subclasses do the rollouts and know their progress: `pipeline` does them here, stage by stage, and
`front` has other services do them. Accepted groups are in the journal, and a restart begins the
unfinished ones again. Nothing here touches HTTP.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from typing import Self

from prorl_service.attempt import SampledTurns
from prorl_service.client import AsyncRolloutClient
from prorl_service.errors import Conflict, NotFound, ResultLost, ServiceStopping
from prorl_service.rollouts.admission import SLICE, Admission
from prorl_service.rollouts.inflight import InflightGroups
from prorl_service.rollouts.journal import Journal, tables
from prorl_service.rollouts.record import EndedRollout, RolloutRecord, failed_result
from prorl_service.rollouts.validation import Validator
from prorl_service.schemas import (
    ErrorInfo,
    Group,
    Invalid,
    Rollout,
    RolloutState,
    ServiceBehind,
    Stage,
)
from prorl_service.schemas.activity import Activity
from prorl_service.utils.tasks import Changes, TaskOwner

log = logging.getLogger(__name__)


class RolloutExecutor(ABC):
    def __init__(
        self,
        journal: Journal,
        validator: Validator,
        *,
        max_unfinished: int,
        max_unfinished_per_client: int | None = None,
    ) -> None:
        """`journal` must be open for as long as this runs. `max_unfinished`: most rollouts accepted
        and not ended; more are refused until some end."""
        self.agents = validator.agents
        self.validator = validator
        self.background = TaskOwner()
        self._journal = journal
        self.inflight = InflightGroups(journal, self.background, self._cancel)
        self._waits: set[asyncio.Queue[str | None]] = set()
        self._waits_ended = False
        self._told_lost: set[str] = set()
        """Rollouts whose lost results are in the log."""
        self._gate = asyncio.Event()
        self._gate.set()
        self._changes = Changes()
        self._admission = Admission(
            validator,
            journal,
            self.inflight,
            self._queue,
            self.background,
            max_unfinished=max_unfinished,
            max_unfinished_per_client=max_unfinished_per_client,
        )

    async def __aenter__(self) -> Self:
        self.inflight.ended.update(await self._journal.read(tables.count_ended))
        for group in await self._journal.read(tables.unfinished):
            self._admission.restore(group)
        self._begin_work()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stops. Rollouts that have not ended stay unfinished in the journal."""
        await self.drain(0)
        self.inflight.end_leases()
        await self.background.close()
        await asyncio.gather(*(self._release(record) for record in self.inflight))

    # --- for subclasses -------------------------------------------------------------------------

    @abstractmethod
    def _queue(self, record: RolloutRecord) -> None:
        """Queue a rollout for work. Siblings come one after the other."""

    @abstractmethod
    def _begin_work(self) -> None:
        """Start the work in `background`; begin nothing new while `_gate` is not set."""

    @abstractmethod
    def _is_running(self) -> bool:
        """Return whether there are rollouts that can end without anything new being begun."""

    @property
    @abstractmethod
    def slots(self) -> int:
        """Number of rollouts that keep the workers busy, running or ready to run; at least 1."""

    @abstractmethod
    def queues(self) -> dict[str, int]:
        """Return the number of queued rollouts by what they wait for."""

    @abstractmethod
    def workers(self) -> dict[Stage, int]: ...

    @abstractmethod
    async def _release(self, record: RolloutRecord) -> None:
        """Free what an attempt holds in this process."""

    def running(self) -> dict[Stage, int]:
        """Workers that have a rollout now."""
        return {}

    def oldest_s(self) -> dict[Stage, float]:
        """Seconds of the rollout that has been in each stage the longest."""
        return {}

    # --- for people -----------------------------------------------------------------------------

    def progress(self, record: RolloutRecord) -> SampledTurns | None:
        """What it has sampled in its attempt so far. None: no attempt is made in this process."""
        return None

    def activity(self, record: RolloutRecord) -> Activity | None:
        """What it does now. None: it has ended, or does nothing in this process."""
        return None

    def elsewhere(self, record: RolloutRecord) -> AsyncRolloutClient | None:
        """A client of the service that runs it. None: no other does."""
        return None

    def services(self) -> list[ServiceBehind]:
        """Services that do the rollouts in place of this one."""
        return []

    # --- ends -----------------------------------------------------------------------------------

    def _end(
        self, record: RolloutRecord, state: RolloutState, error: ErrorInfo | None = None
    ) -> None:
        record.end(state, error)

    def note_change(self) -> None:
        """Call this when work on a rollout was begun, abandoned or done."""
        self._changes.notify()

    async def drain(self, budget_s: float) -> None:
        """Begin nothing more, let running rollouts end within `budget_s`, then end all waits."""
        self._admission.refusal = _stopping()
        self._gate.clear()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(budget_s):
                    while self._is_running():
                        await self._changes.wait()
        finally:
            self._waits_ended = True
            for queue in self._waits:
                queue.put_nowait(None)

    @property
    def is_stopping(self) -> bool:
        return not self._gate.is_set()

    # --- for callers ----------------------------------------------------------------------------

    async def submit(self, groups: Sequence[Group], invalid: Invalid = "refuse") -> list[Rollout]:
        """Queue the rollouts of all groups, or of none if one is invalid and `invalid` is "refuse".

        Returns the rollouts without trajectories; those of groups submitted before as they are.
        Raises `InvalidRequest` naming the field, `Conflict`, `Overloaded`, `ServiceStopping`,
        `JournalError`, and `BackendUnavailable` if no model is known to check prompts against.
        """
        await self._admission.accept(groups, invalid)
        if unwanted := [one for group in groups for one in self._unwanted(group)]:
            await self.cancel(unwanted)
        return await self._summaries([one for group in groups for one in group.rollout_ids()])

    def _unwanted(self, group: Group) -> list[str]:
        """Returns the rollouts in flight that the group wanted when it was submitted before."""
        unended, wanted = self.inflight.unended(group.group_id), set(group.indices)
        return [one.rollout_id for one in unended if one.index not in wanted]

    async def get(self, rollout_id: str) -> RolloutRecord | EndedRollout:
        """Raises `NotFound`."""
        return self.inflight.get(rollout_id) or await self._ended(rollout_id)

    async def ended(self, rollout_ids: Sequence[str]) -> AsyncIterator[EndedRollout]:
        """Yield each rollout as soon as it has ended. Stops early when the service does. Raises
        `NotFound`."""
        queue: asyncio.Queue[str | None] = asyncio.Queue()
        watched: list[RolloutRecord] = []
        self._waits.add(queue)
        if self._waits_ended:
            queue.put_nowait(None)

        def note(record: RolloutRecord) -> None:
            queue.put_nowait(record.rollout_id)

        with ExitStack() as leases:
            leases.callback(self._waits.discard, queue)
            pending = dict.fromkeys(rollout_ids)
            for rollout_id in pending:
                if (record := self.inflight.get(rollout_id)) is None:
                    queue.put_nowait(rollout_id)
                    continue
                leases.enter_context(self.inflight.lease(record).held())
                record.watch(note)
                watched.append(record)
            try:
                while pending:
                    next_id = await queue.get()
                    if next_id is None:
                        return
                    ended = await self._ended(next_id)
                    del pending[next_id]
                    yield ended
            finally:
                for record in watched:
                    record.unwatch(note)

    async def watch(self, rollout_ids: Sequence[str], on_end: Callable[[Rollout], None]) -> None:
        """Call `on_end` with each once it has ended, without its trajectory. Raises `NotFound`."""
        others = []
        for rollout_id in rollout_ids:
            record = self.inflight.get(rollout_id)
            if record is None:
                others.append(rollout_id)
            else:
                record.watch(lambda ended: on_end(ended.to_wire()))
        for rollout in await self._summaries(others):
            on_end(rollout)

    async def check_known(self, rollout_ids: Iterable[str]) -> None:
        """Raises `NotFound`."""
        others = [one for one in rollout_ids if self.inflight.get(one) is None]
        known = await self._journal.read(tables.summaries, others)
        for rollout_id in others:
            if rollout_id not in known:
                raise _unknown(rollout_id)

    async def cancel(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        """Cancel the rollouts that have not ended. Returns when all have. Raises `NotFound`."""
        await self.check_known(rollout_ids)
        records = [one for one in map(self.inflight.get, rollout_ids) if one is not None]
        self.note_change()
        await self._cancel(records)
        async for _ in self.ended([record.rollout_id for record in records]):
            pass
        return await self._summaries(rollout_ids)

    async def _cancel(
        self, records: Sequence[RolloutRecord], reason: ErrorInfo | None = None
    ) -> None:
        """End the rollouts that wait. The workers that hold the others end them."""
        for record in records:
            record.request_cancel(reason)
        await asyncio.gather(*(self._end_if_waiting(record) for record in records))

    async def _end_if_waiting(self, record: RolloutRecord) -> None:
        if record.is_waiting and record.outcome is None:
            await self._release(record)
            if record.outcome is None:  # otherwise another canceller was faster
                self._end(record, RolloutState.CANCELLED, record.cancel_reason)

    async def cancel_all_of_others(self, training: str, reason: ErrorInfo) -> None:
        """Cancels rollouts for trainings but this one; returns before those at work have ended."""
        groups = [one for one in self.inflight.groups() if one.admitted.group.owner is None]
        others = [one for one in groups if one.admitted.group.training not in (None, training)]
        await self._cancel([record for one in others for record in one.records], reason)
        self.note_change()

    async def acknowledge(self, group_ids: Sequence[str]) -> None:
        """Forget groups whose rollouts were received. Raises `Conflict` for a group in flight."""
        for group_id in group_ids:
            if group_id in self.inflight:
                raise Conflict(
                    f"group {group_id!r} has rollouts that have not ended",
                    hint="wait for them, or cancel them first",
                )
        self.inflight.ended.subtract(await self._journal.forget(group_ids))

    async def _ended(self, rollout_id: str) -> EndedRollout:
        try:
            found = await self._journal.read(tables.answer, rollout_id)
        except ResultLost as lost:
            return EndedRollout.of(await self._lost(rollout_id, lost))
        if found is None:
            raise _unknown(rollout_id)
        return EndedRollout.stored(*found)

    async def _lost(self, rollout_id: str, lost: ResultLost) -> Rollout:
        """Returns the failure in the place of a result that the journal has lost."""
        if rollout_id not in self._told_lost:
            self._told_lost.add(rollout_id)
            log.error("rollout %s: %s", rollout_id, lost.message)
        return failed_result(rollout_id, await self._journal.read(tables.remains, rollout_id), lost)

    async def _summaries(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        """Return summaries in the order of the ids. Raises `NotFound`."""
        wire = {}
        for number, rollout_id in enumerate(rollout_ids, 1):
            if (record := self.inflight.get(rollout_id)) is not None:
                wire[rollout_id] = record.to_wire()
            if number % SLICE == 0:
                await asyncio.sleep(0)
        ended = await self._journal.read(
            tables.summaries, [one for one in rollout_ids if one not in wire]
        )
        for rollout_id, summary in ended.items():
            if isinstance(summary, ResultLost):
                wire[rollout_id] = await self._lost(rollout_id, summary)
            else:
                wire[rollout_id] = Rollout.model_validate_json(summary)
        try:
            return [wire[rollout_id] for rollout_id in rollout_ids]
        except KeyError as missing:
            raise _unknown(missing.args[0]) from None


def _unknown(rollout_id: str) -> NotFound:
    return NotFound(
        f"there is no rollout {rollout_id!r}",
        hint="it was never submitted, or was forgotten: it was acknowledged, or ended long ago",
    )


def _stopping() -> ServiceStopping:
    return ServiceStopping("the service is stopping", hint="submit again when it is back")
