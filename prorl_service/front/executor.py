"""The executor of a front: other services do the rollouts, each group at one service, and at
another if that is lost.

A service is given as many rollouts as keep it busy; the others wait here, in the order of a
service's own queue. Answers go into the front's own journal, so that a rollout ends once even if
services that had it are lost. The journal also says which service has a group: after a restart of
the front the group continues there. Groups are leased: a service abandons them when the front is
gone for good.
"""

import asyncio
from collections.abc import Mapping
from typing import Self

from prorl_service.client import AsyncRolloutClient
from prorl_service.front import placements
from prorl_service.front.forwarding import ForwardedGroup
from prorl_service.front.service import RolloutService
from prorl_service.front.services import Services
from prorl_service.pipeline.queues import FairQueue
from prorl_service.rollouts.executor import RolloutExecutor
from prorl_service.rollouts.journal import Journal
from prorl_service.rollouts.record import RolloutRecord
from prorl_service.rollouts.validation import Validator
from prorl_service.schemas import (
    Group,
    ServiceBehind,
    Stage,
)


class RemoteExecutor(RolloutExecutor):
    def __init__(
        self,
        journal: Journal,
        validator: Validator,
        services: Services,
        *,
        max_unfinished: int,
        max_unfinished_per_client: int | None = None,
    ) -> None:
        super().__init__(
            journal,
            validator,
            max_unfinished=max_unfinished,
            max_unfinished_per_client=max_unfinished_per_client,
        )
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

    # --- forwarding -------------------------------------------------------------------------------

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
        records = self.inflight.unended(group_id)
        service = await self._services.find(name, len(records)) if records else None
        if service is not None:
            forwarded = self._forwarded_group(records[0].group, placed_at=name)
            await self._forward(forwarded, service, len(records))
        else:
            self._journal.write(placements.remove(group_id))
            for record in records:
                self._waiting.put_nowait(record)

    def _forwarded_group(self, group: Group, placed_at: str | None = None) -> ForwardedGroup:
        records = self.inflight.unended(group.group_id)
        forwarded = ForwardedGroup(group, records, self._services, self._journal, placed_at)
        self._forwarded[group.group_id] = forwarded
        return forwarded

    async def _forward(
        self, forwarded: ForwardedGroup, service: RolloutService, taken: int
    ) -> None:
        try:
            await forwarded.run_at(service, taken)
        except Exception as bug:  # the boundary: a group's failure must not affect others
            forwarded.fail(bug)
        finally:
            del self._forwarded[forwarded.group.group_id]
            self.note_change()
        self._journal.write(placements.remove(forwarded.group.group_id))
        await forwarded.forget()
