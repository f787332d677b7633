"""One group at other services: given to one, followed until it has ended there, and given to
another if that service is lost.

Ends the group's rollouts as their service did. Knows nothing of other groups, or of the queue.
"""

import asyncio
import logging
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager
from http import HTTPStatus

from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.errors import OwnedByAnother
from prorl_service.front import placements
from prorl_service.front.service import RolloutService, ServiceLost
from prorl_service.front.services import Services
from prorl_service.rollouts.journal import Journal
from prorl_service.rollouts.record import RolloutRecord
from prorl_service.schemas import Blame, ErrorInfo, Group, Rollout, RolloutState

log = logging.getLogger(__name__)

GROUP_LEASE_S = 180.0
"""Seconds that a service keeps a group without a request for it: enough to restart the front."""
FOREVER_S = 1e9
"""Time-out of streams, in effect none: the services keep the budgets."""
REFUSALS = (409, 413, 422)
"""HTTP statuses with which every service would refuse a group."""


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
        self._given: dict[str, tuple[RolloutService, Group]] = {}
        """Services that may have the group, by name, each with what it was last given of it."""
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

    async def forget(self) -> None:
        """Has all services forget the group. Call it when it has ended here."""
        for service, _ in self._given.values():
            await service.forget(self.group.group_id)

    async def _leave(self, left: RolloutService, error: BaseException) -> RolloutService:
        """Returns the next service, perhaps the same. A service that is left abandons the group; it
        may have results that are not here, and keeps them until the group has ended here."""
        self._services.suspect(left)
        text = "%d rollouts of group %s leave service %s: %s"
        log.warning(text, len(self._pending), self.group.group_id, left.name, error)
        service = left
        self._end_cancelled()
        if self._pending:
            taken = len(self._pending)
            service = await self._services.take(taken)
            self._claim(service, taken)
        if service.name != left.name or not self._pending:
            left.abandon(self._given[left.name][1])
        return service

    def _claim(self, service: RolloutService, taken: int) -> None:
        """Ends rollouts that were cancelled meanwhile, and gives back their room."""
        self._end_cancelled()
        self._services.release(service, taken - len(self._pending))

    def _end_cancelled(self) -> None:
        for record in self._pending.values():
            if record.cancel_requested and record.outcome is None:
                record.end(RolloutState.CANCELLED, record.cancel_reason)
        self._pending = {k: one for k, one in self._pending.items() if one.outcome is None}

    @contextmanager
    def _held_by(self, service: RolloutService) -> Iterator[None]:
        """Lets `service` hold the rollouts; those unended when it is left may be cancelled here."""
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
        async with asyncio.TaskGroup() as meanwhile:
            watching: list[asyncio.Task[None]] = [meanwhile.create_task(service.until_lost())]
            self._begin(is_there=await self._submit(service))
            watching.append(meanwhile.create_task(self._recall(service.client)))
            await self._take_results(service, list(self._pending))
            for one in watching:
                one.cancel()

    async def _take_results(self, service: RolloutService, rollout_ids: Sequence[str]) -> None:
        """Ends the rollouts as the service did. Returns when that is written, so that the service
        may forget them."""
        written = []
        async with aclosing(service.client.parts(rollout_ids, FOREVER_S)) as parts:
            async for summary, content in parts:
                written.append(self._end(summary, content))
                self._services.release(service)
        await asyncio.gather(*written, return_exceptions=True)

    async def _submit(self, service: RolloutService) -> bool:
        """Returns whether the service had the group all the time. Raises `ServiceCallError`."""
        self._given.setdefault(service.name, (service, self._unended()))
        await service.settle(self.group.group_id)
        is_there = self._placed_at == service.name and await self._is_known(service.client)
        if self._placed_at != service.name:
            await self._journal.write(placements.place(self.group.group_id, service.name))
            self._placed_at = service.name
        if any(map(self._was_given_up, await self._give(service))):
            is_there = False
            await self._clear(service)
            if self._pending:
                await self._give(service)
        return is_there

    async def _give(self, service: RolloutService) -> list[Rollout]:
        """Submits the rollouts that have not ended. The service cancels what else it has in flight
        of the group."""
        given = self._unended()
        self._given[service.name] = service, given
        return await service.client.submit([given])

    def _unended(self) -> Group:
        only = sorted(record.index for record in self._pending.values())
        return self.group.model_copy(update={"only": only})

    async def _clear(self, service: RolloutService) -> None:
        """Takes the results that the service has of a group that it had given up, and has it forget
        the group."""
        ended = await service.client.cancel(list(self._pending))
        results = [one.rollout_id for one in ended if not self._was_given_up(one)]
        self._begin(is_there=True)
        await self._take_results(service, results)
        await service.client.acknowledge([self.group.group_id])

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
        for service, given in self._given.values():
            service.abandon(given)

    def _end_all(self, error: ErrorInfo) -> None:
        for record in self._pending.values():
            record.end(RolloutState.FAILED, error)
        self._pending = {}


def _is_refusal(error: ServiceCallError) -> bool:
    is_other = error.error.kind == OwnedByAnother.__name__
    return error.http_status in REFUSALS and not is_other
