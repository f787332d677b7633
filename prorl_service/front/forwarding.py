"""Has other services do the rollouts: each group at one of them, and at another if that is lost.

A service is given as many rollouts as keep it busy; what is more waits here, in the order of a
service's own queue. Answers are taken over as they are, into the front's own journal, so that a
rollout ends once whatever becomes of the services that had it. Groups are leased: what was given
to another is given up by a service that comes back.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.front.services import RolloutService, Services
from prorl_service.pipeline.accepted import AcceptedRollouts
from prorl_service.pipeline.admission import Admission
from prorl_service.pipeline.journal import Journal
from prorl_service.pipeline.queues import FairQueue
from prorl_service.pipeline.record import RolloutRecord
from prorl_service.schemas import Group, Rollout, RolloutState, Stage

log = logging.getLogger(__name__)

GROUP_LEASE_S = 30.0
"""At a service that nobody asks any more, longer than `LOST_AFTER_S`."""
FOREVER_S = 1e9
"""Budgets are the services' affair."""
REFUSALS = (409, 413, 422)
"""Statuses of a group that no service would take."""


class Forwarding(AcceptedRollouts):
    def __init__(
        self,
        journal: Journal,
        admission: Admission,
        services: Services,
        *,
        max_unfinished: int,
    ) -> None:
        super().__init__(journal, admission, max_unfinished=max_unfinished)
        self._services = services
        self._waiting = FairQueue()
        self._forwarded: dict[str, ForwardedGroup] = {}
        """By group."""

    def _queue(self, record: RolloutRecord) -> None:
        self._waiting.put_nowait(record)

    def _begin_work(self) -> None:
        self.background.start(self._services.serve(), name="look for services")
        self.background.start(self._dispatch(), name="forward groups")

    def _is_at_work(self) -> bool:
        return bool(self._forwarded)

    @property
    def slots(self) -> int:
        return max(1, self._services.slots)

    def queues(self) -> dict[str, int]:
        return {Stage.INIT: self._waiting.qsize()}

    def workers(self) -> dict[Stage, int]:
        return {Stage.RUN: self._services.slots}

    async def _dispatch(self) -> None:
        async with asyncio.TaskGroup() as forwardings:
            while True:
                record = await self._waiting.get()
                group = record.group
                if record.end_state is not None or group.group_id in self._forwarded:
                    continue  # it was taken with a sibling, or cancelled
                service = await self._services.take(group.n)
                await self._may_begin.wait()
                await self._journal.writable.wait()
                records = self._under_way.unended(group.group_id)
                forwarded = ForwardedGroup(group, records, self._services)
                self._forwarded[group.group_id] = forwarded
                forwardings.create_task(self._forward(forwarded, service))

    async def _forward(self, forwarded: "ForwardedGroup", service: RolloutService) -> None:
        try:
            await forwarded.run_at(service)
        finally:
            del self._forwarded[forwarded.group.group_id]
            self._on_change()


class _GivenUp(Exception):
    """A service cancelled what nobody here has cancelled."""


class ForwardedGroup:
    """The rollouts of one group while they are at a service, or between two."""

    def __init__(self, group: Group, records: Sequence[RolloutRecord], services: Services) -> None:
        self.group = group.model_copy(update={"lease_s": GROUP_LEASE_S})
        self._pending = {record.rollout_id: record for record in records}
        self._services = services
        self._recalled = asyncio.Event()

    async def run_at(self, service: RolloutService) -> None:
        """Returns when all have ended, there or elsewhere. `service` has been taken for the whole
        group."""
        await self._claim(service, self.group.n)
        while self._pending:
            try:
                with self._held_by(service):
                    await self._exchange(service)
            except* (ServiceCallError, _GivenUp) as errors:
                self._judge(service, errors.exceptions[0])
            await self._end_cancelled()
            if self._pending:
                taken = len(self._pending)
                service = await self._services.take(taken)
                await self._claim(service, taken)

    async def _claim(self, service: RolloutService, taken: int) -> None:
        """Less what was cancelled meanwhile."""
        await self._end_cancelled()
        self._services.release(service, taken - len(self._pending))

    async def _end_cancelled(self) -> None:
        for record in self._pending.values():
            if record.cancel_requested:
                await record.end_if_waiting()
        self._pending = {k: one for k, one in self._pending.items() if one.end_state is None}

    @contextmanager
    def _held_by(self, service: RolloutService) -> Iterator[None]:
        """What has not ended there may be cancelled here when it is left."""
        for record in self._pending.values():
            record.is_waiting, record.work = False, self
            record.begin()
            if record.state is RolloutState.QUEUED:
                for state in (RolloutState.INIT, RolloutState.READY, RolloutState.RUNNING):
                    record.move(state)
        try:
            yield
        finally:
            for record in self._pending.values():
                record.is_waiting, record.work = True, None
            self._services.release(service, len(self._pending))

    def cancel(self) -> None:
        """For cancellers of its rollouts, while they are at a service."""
        self._recalled.set()

    async def _exchange(self, service: RolloutService) -> None:
        """Raises groups of `ServiceCallError` and `_GivenUp`."""
        client, group_id = service.client, self.group.group_id
        forwarded_at = time.time()
        known = await client.submit([self.group])
        if any(map(self._was_given_up, known)):
            await client.cancel(self.group.rollout_ids())
            await client.acknowledge([group_id])
            await client.submit([self.group])
        if ended := [one for one in self.group.rollout_ids() if one not in self._pending]:
            await client.cancel(ended)
        written = []
        async with asyncio.TaskGroup() as meanwhile:
            recalling = meanwhile.create_task(self._recall(client))
            async for answer in client.stream(list(self._pending), FOREVER_S):
                written.append(self._end(answer, forwarded_at))
                self._services.release(service)
            recalling.cancel()
        await asyncio.gather(*written, return_exceptions=True)
        with suppress(ServiceCallError):  # it expires
            await client.acknowledge([group_id])

    async def _recall(self, client: AsyncRolloutClient) -> None:
        while True:
            await self._recalled.wait()
            self._recalled.clear()
            if cancelled := [k for k, one in self._pending.items() if one.cancel_requested]:
                await client.cancel(cancelled)

    def _end(self, answer: Rollout, forwarded_at: float) -> "asyncio.Future[Counter[str]]":
        """Raises `_GivenUp`."""
        if self._was_given_up(answer):
            raise _GivenUp(f"{answer.rollout_id} was cancelled there: {answer.error}")
        record = self._pending.pop(answer.rollout_id)
        return record.end_as(answer, waited_s=forwarded_at - record.created_at)

    def _was_given_up(self, answer: Rollout) -> bool:
        record = self._pending.get(answer.rollout_id)
        is_cancelled = answer.state is RolloutState.CANCELLED
        return is_cancelled and record is not None and not record.cancel_requested

    def _judge(self, service: RolloutService, error: BaseException) -> None:
        if isinstance(error, ServiceCallError) and error.http_status in REFUSALS:
            for record in self._pending.values():
                record.end(RolloutState.FAILED, error.error)
            self._pending = {}
        else:
            self._services.suspect(service)
            text = "%d rollouts of group %s leave service %s: %s"
            log.warning(text, len(self._pending), self.group.group_id, service.name, error)
