"""The executor of a front: other services do the rollouts, each group at one service, and at
another if that is lost.

A service is given as many rollouts as keep it busy; the others wait here, in the order of a
service's own queue. Answers go into the front's own journal, so that a rollout ends once even if
services that had it are lost. The journal also says which service has a group: after a restart of
the front the group continues there. Groups are leased: a service abandons them when the front is
gone for good.
"""

import asyncio
import logging
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Self

from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.errors import OwnedByAnother
from prorl_service.front import placements
from prorl_service.front.service import RolloutService, ServiceLost
from prorl_service.front.services import Services
from prorl_service.pipeline.queues import FairQueue
from prorl_service.rollouts.executor import RolloutExecutor
from prorl_service.rollouts.journal import Journal
from prorl_service.rollouts.record import RolloutRecord
from prorl_service.rollouts.validation import Validator
from prorl_service.schemas import (
    Blame,
    ErrorInfo,
    Group,
    Rollout,
    RolloutState,
    ServiceBehind,
    Stage,
)

log = logging.getLogger(__name__)

GROUP_LEASE_S = 180.0
"""Seconds that a service keeps a group without a request for it: enough to restart the front."""
FOREVER_S = 1e9
"""Time-out of streams, in effect none: the services keep the budgets."""
REFUSALS = (409, 413, 422)
"""HTTP statuses with which every service would refuse a group."""


class RemoteExecutor(RolloutExecutor):
    def __init__(
        self,
        journal: Journal,
        validator: Validator,
        services: Services,
        *,
        max_unfinished: int,
    ) -> None:
        super().__init__(journal, validator, max_unfinished=max_unfinished)
        self._services = services
        self._waiting = FairQueue()
        self._forwarded: dict[str, ForwardedGroup] = {}
        """Forwarded groups by id."""
        self._placed: dict[str, str] = {}
        """Names of the services that have groups, by group id, as an earlier process left them."""

    async def __aenter__(self) -> Self:
        self._placed = await self._journal.read(placements.read)
        return await super().__aenter__()

    def _queue(self, record: RolloutRecord) -> None:
        if record.group.group_id not in self._placed:
            self._waiting.put_nowait(record)

    def _begin_work(self) -> None:
        placed, self._placed = self._placed, {}
        self.background.start(self._services.serve(), name="look for services")
        self.background.start(self._dispatch(placed), name="forward groups")

    def _is_running(self) -> bool:
        return bool(self._forwarded)

    async def _release(self, record: RolloutRecord) -> None:
        """Does nothing: attempts hold their resources at the services."""

    @property
    def slots(self) -> int:
        return max(1, self._services.slots)

    def queues(self) -> dict[str, int]:
        return {Stage.INIT: self._waiting.qsize()}

    def workers(self) -> dict[Stage, int]:
        return {Stage.RUN: self._services.slots}

    def running(self) -> dict[Stage, int]:
        return {Stage.RUN: self._services.load}

    def services(self) -> list[ServiceBehind]:
        return self._services.statuses()

    def elsewhere(self, record: RolloutRecord) -> AsyncRolloutClient | None:
        forwarded = self._forwarded.get(record.group.group_id)
        service = forwarded.service if forwarded is not None else None
        return None if service is None else service.questions

    async def _dispatch(self, placed: Mapping[str, str]) -> None:
        async with asyncio.TaskGroup() as forwardings:
            for group_id, name in placed.items():
                forwardings.create_task(self._resume(group_id, name))
            while True:
                record = await self._waiting.get()
                group = record.group
                if record.outcome is not None or group.group_id in self._forwarded:
                    continue  # it was taken with a sibling, or cancelled
                service = await self._services.take(group.n)
                await self._gate.wait()
                await self._journal.writable.wait()
                forwarded = self._forwarded_group(group)
                forwardings.create_task(self._forward(forwarded, service, group.n))

    async def _resume(self, group_id: str, name: str) -> None:
        """Continues the group at the service that has it, even if that has no room."""
        records = self._inflight.unended(group_id)
        service = await self._services.find(name, len(records)) if records else None
        if service is not None:
            forwarded = self._forwarded_group(records[0].group, placed_at=name)
            await self._forward(forwarded, service, len(records))
        else:
            self._journal.write(placements.remove(group_id))
            for record in records:
                self._waiting.put_nowait(record)

    def _forwarded_group(self, group: Group, placed_at: str | None = None) -> "ForwardedGroup":
        records = self._inflight.unended(group.group_id)
        forwarded = ForwardedGroup(group, records, self._services, self._journal, placed_at)
        self._forwarded[group.group_id] = forwarded
        return forwarded

    async def _forward(
        self, forwarded: "ForwardedGroup", service: RolloutService, taken: int
    ) -> None:
        try:
            await forwarded.run_at(service, taken)
        except Exception as bug:  # the boundary: a group's failure must not affect others
            forwarded.fail(bug)
        finally:
            del self._forwarded[forwarded.group.group_id]
            self._on_change()
        self._journal.write(placements.remove(forwarded.group.group_id))


class _Abandoned(Exception):
    """A service cancelled a rollout that was not cancelled here."""


LEAVE = (ServiceCallError, ServiceLost, _Abandoned)
"""Reasons to give a group to another service."""


class ForwardedGroup:
    """The rollouts of one group while they are at a service, or between two."""

    def __init__(
        self,
        group: Group,
        records: Sequence[RolloutRecord],
        services: Services,
        journal: Journal,
        placed_at: str | None,
    ) -> None:
        bound = {"lease_s": GROUP_LEASE_S, "owner": services.owner}
        self.group = group.model_copy(update=bound)
        self._pending = {record.rollout_id: record for record in records}
        self._services = services
        self._journal = journal
        self._placed_at = placed_at
        """Name of the last service that got the group."""
        self._waited_s = 0.0
        """Seconds that the group waited in this process until that service got it."""
        self._recalled = asyncio.Event()
        self.service: RolloutService | None = None
        """The one that has it now."""

    async def run_at(self, service: RolloutService, taken: int) -> None:
        """Returns when all rollouts have ended, there or elsewhere. `taken`: number of rollouts
        for which `service` was taken."""
        self._claim(service, taken)
        while self._pending:
            try:
                with self._held_by(service):
                    await self._exchange(service)
            except* LEAVE as errors:
                error = errors.exceptions[0]
                if isinstance(error, ServiceCallError) and _is_refusal(error):
                    self._end_all(error.error)
                else:
                    service = await self._leave(service, error)

    async def _leave(self, left: RolloutService, error: BaseException) -> RolloutService:
        """Returns the next service, perhaps the same. A service that is left abandons the group."""
        self._services.suspect(left)
        text = "%d rollouts of group %s leave service %s: %s"
        log.warning(text, len(self._pending), self.group.group_id, left.name, error)
        service = left
        self._end_cancelled()
        if self._pending:
            taken = len(self._pending)
            service = await self._services.take(taken)
            self._claim(service, taken)
        if service is not left or not self._pending:
            left.abandon(self.group)
        return service

    def _claim(self, service: RolloutService, taken: int) -> None:
        """Ends rollouts that were cancelled meanwhile, and gives back their room."""
        self._end_cancelled()
        self._services.release(service, taken - len(self._pending))

    def _end_cancelled(self) -> None:
        for record in self._pending.values():
            if record.cancel_requested and record.outcome is None:
                record.finish(record.answer(RolloutState.CANCELLED, record.cancel_reason))
        self._pending = {k: one for k, one in self._pending.items() if one.outcome is None}

    @contextmanager
    def _held_by(self, service: RolloutService) -> Iterator[None]:
        """Lets `service` hold the rollouts; those unended when it is left may be cancelled here."""
        service.reclaim(self.group)
        self.service = service
        for record in self._pending.values():
            record.is_waiting, record.work = False, self
        try:
            yield
        finally:
            self.service = None
            for record in self._pending.values():
                record.is_waiting, record.work = True, None
            self._services.release(service, len(self._pending))

    def cancel(self) -> None:
        """Has the service cancel the rollouts that are to be cancelled."""
        self._recalled.set()

    async def _exchange(self, service: RolloutService) -> None:
        """Has `service` do the rollouts. Raises exception groups of `LEAVE`."""
        client, group_id = service.client, self.group.group_id
        written = []
        async with asyncio.TaskGroup() as meanwhile:
            watching: list[asyncio.Task[None]] = [meanwhile.create_task(service.until_lost())]
            self._begin(is_there=await self._submit(service))
            watching.append(meanwhile.create_task(self._recall(client)))
            async for summary, content in client.parts(list(self._pending), FOREVER_S):
                written.append(self._end(summary, content))
                self._services.release(service)
            for one in watching:
                one.cancel()
        await asyncio.gather(*written, return_exceptions=True)
        try:
            await client.acknowledge([group_id])
        except ServiceCallError:
            service.abandon(self.group)

    async def _submit(self, service: RolloutService) -> bool:
        """Returns whether the service had the group all the time. Raises `ServiceCallError`."""
        client = service.client
        is_there = self._placed_at == service.name and await self._is_known(client)
        if self._placed_at != service.name:
            await self._journal.write(placements.place(self.group.group_id, service.name))
            self._placed_at = service.name
        known = await client.submit([self.group])
        if any(map(self._was_given_up, known)):
            is_there = False
            await client.cancel(self.group.rollout_ids())
            await client.acknowledge([self.group.group_id])
            await client.submit([self.group])
        if ended := [one for one in self.group.rollout_ids() if one not in self._pending]:
            await client.cancel(ended)
        return is_there

    async def _is_known(self, client: AsyncRolloutClient) -> bool:
        try:
            await client.get(next(iter(self._pending)), shelf=False)
        except ServiceCallError as error:
            if error.http_status == HTTPStatus.NOT_FOUND:
                return False
            raise
        return True

    def _begin(self, *, is_there: bool) -> None:
        for record in self._pending.values():
            if not is_there:
                self._waited_s = record.waited_s
            if not is_there or record.attempt == 0:
                record.begin()
            if record.state is RolloutState.QUEUED:
                for state in (RolloutState.INIT, RolloutState.READY, RolloutState.RUNNING):
                    record.move(state)

    async def _recall(self, client: AsyncRolloutClient) -> None:
        while True:
            await self._recalled.wait()
            self._recalled.clear()
            if cancelled := [k for k, one in self._pending.items() if one.cancel_requested]:
                try:
                    await client.cancel(cancelled)
                except ServiceCallError as error:
                    if not error.retryable:
                        raise
                    self._recalled.set()  # a cancellation may take longer than a call may

    def _end(self, answer: Rollout, content: bytes) -> "asyncio.Future[Counter[str]]":
        """Ends a rollout as its service did. Raises `_Abandoned`."""
        if self._was_given_up(answer):
            raise _Abandoned(f"{answer.rollout_id} was cancelled there: {answer.error}")
        if not answer.is_terminal:
            raise ValueError(f"{answer.rollout_id} is reported as ended, but is {answer.state}")
        record = self._pending[answer.rollout_id]
        if answer.state is RolloutState.DONE:
            if answer.reward is None:
                raise ValueError(f"{answer.rollout_id} is reported as done, without a reward")
            record.move(RolloutState.EVALUATING)
        written = record.finish(self._taken_over(record, answer), content)
        del self._pending[answer.rollout_id]
        return written

    def _taken_over(self, record: RolloutRecord, answer: Rollout) -> Rollout:
        """Returns `answer` with the fields that this front sets."""
        queue_s = answer.timings.queue_s + self._waited_s
        own = {
            "attempt": record.attempt + answer.attempt - 1,
            "error": record.cancel_reason if record.cancel_requested else answer.error,
            "timings": answer.timings.model_copy(update={"queue_s": queue_s}),
            "created_at": record.created_at,
        }
        return answer.model_copy(update=own)

    def _was_given_up(self, answer: Rollout) -> bool:
        record = self._pending.get(answer.rollout_id)
        is_cancelled = answer.state is RolloutState.CANCELLED
        return is_cancelled and record is not None and not record.cancel_requested

    def fail(self, bug: BaseException) -> None:
        """Fails the rollouts, blamed on this front: it did not expect what another service did."""
        while isinstance(bug, BaseExceptionGroup):
            bug = bug.exceptions[0]
        where = traceback.extract_tb(bug.__traceback__)[-1]
        text = "forwarding group %s failed at %s:%d: %r"
        log.error(text, self.group.group_id, where.filename, where.lineno, bug)
        message = f"the front failed to forward the group: {bug!r}"
        self._end_all(ErrorInfo(kind=type(bug).__name__, blame=Blame.SERVICE, message=message))

    def _end_all(self, error: ErrorInfo) -> None:
        for record in self._pending.values():
            record.finish(record.answer(RolloutState.FAILED, error))
        self._pending = {}


def _is_refusal(error: ServiceCallError) -> bool:
    is_other = error.error.kind == OwnedByAnother.__name__
    return error.http_status in REFUSALS and not is_other
