"""One service behind a front: whether it takes rollouts, and when to ask.

A service that holds groups is heard through their streams, and asked only when those are silent;
one at rest is asked rarely. Knows of rollouts only how many the service has.
"""

import asyncio
import logging
import random
import time
from collections.abc import Collection
from http import HTTPStatus

from prorl_service import __version__
from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.schemas import (
    BackendSpec,
    BackendState,
    Group,
    ServiceBehind,
    ServiceStatus,
    Stage,
)

log = logging.getLogger(__name__)

STATUS_TIMEOUT_S = 3.0
"""Seconds of silence after which a probe counts as missed."""
SILENCE_S = 2.0
"""Seconds of silence after which a service with rollouts is probed."""
REST_S = (12.0, 18.0)
"""Least and most seconds between probes of a service at rest: at random, so that the probes of many
services spread out."""
CLOSED_S, LOST_S = 1.0, 5.0
"""Seconds between probes of a service that is closed, and of one that is lost."""
LOST_AFTER_S = 10.0
"""Seconds without an answer after which a service is lost: its groups are given to others."""
LOST_AFTER_MISSES = 3
"""Fewest missed probes of a lost service: the front itself may have stalled."""
STREAM_IDLE_S = 15.0
"""Seconds of silence after which a stream is broken. Services send an empty line every 10 s."""
RENEW_S = 60.0
"""Seconds between reports of engines that have not changed."""
ENGINE_LEASE_S = 240.0
"""Seconds after which services forget the engines of a front that is gone: longer than they keep
its groups, which need the engines."""


class ServiceLost(Exception):
    """The service has not answered for some time."""


class Farewells:
    """What a service has yet to be told of groups that have left it."""

    def __init__(self) -> None:
        self.left: dict[str, Group] = {}
        """Groups to cancel there, by id: as they were given to it."""
        self.ended: set[str] = set()
        """Ids of groups to forget there: this front has all their results."""
        self._telling = asyncio.Lock()

    def __contains__(self, group_id: object) -> bool:
        return group_id in self.left or group_id in self.ended

    def __bool__(self) -> bool:
        return bool(self.left or self.ended)

    async def tell(self, client: AsyncRolloutClient) -> None:
        """Returns when the service knows all of it. Raises `ServiceCallError`."""
        async with self._telling:
            for group in list(self.left.values()):
                try:
                    await client.cancel(group.rollout_ids())
                except ServiceCallError as error:
                    if error.http_status != HTTPStatus.NOT_FOUND:  # forgotten, or never known
                        raise
                self.left.pop(group.group_id, None)
            if forgotten := set(self.ended):
                await _forget(client, forgotten)
                self.ended -= forgotten


async def _forget(client: AsyncRolloutClient, group_ids: Collection[str]) -> None:
    """Raises `ServiceCallError`, but not if the service refuses."""
    try:
        await client.acknowledge(sorted(group_ids))
    except ServiceCallError as error:
        if error.http_status not in (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND):
            raise
        log.warning("a service does not forget groups: %s", error)


class RolloutService:
    """One service, at one address."""

    def __init__(
        self, name: str, url: str, token: str | None, owner: str, farewells: Farewells
    ) -> None:
        """`owner`: the front whose engines are added there. `farewells`: those of services of this
        name."""
        self.name = name
        self.url = url
        self._owner = owner
        self.client = AsyncRolloutClient(
            url,
            token=token,
            retry_s=LOST_AFTER_S,
            idle_s=STREAM_IDLE_S,
            on_answer=self._note_answer,
        )
        self.is_announced = True
        self.answers = False
        """True once it has answered a question, until it misses one."""
        self.is_open = False
        """True while it answers, has the engines and takes rollouts."""
        self.problem = "not asked yet"
        self.slots = 1
        """Number of rollouts that keep it busy."""
        self.load = 0
        """Number of rollouts that it has been given and that have not ended."""
        self.questions = self.client.limited(retry_s=0, idle_s=STATUS_TIMEOUT_S)
        """Client for questions that are asked once and not waited for long."""
        self._lost = asyncio.Event()
        self._answered_at = time.monotonic()
        self.is_asked = False
        """True while a question is open, or waits for room."""
        self._asked_at = float("-inf")
        self._rest_s = 0.0
        self._misses = 0
        """Consecutive missed probes."""
        self._farewells = farewells
        self._told: list[BackendSpec] = []
        self._told_at = 0.0

    @property
    def has_room(self) -> bool:
        return self.is_announced and self.is_open and self.load < self.slots

    def status(self) -> ServiceBehind:
        return ServiceBehind(
            name=self.name,
            url=self.url,
            takes_rollouts=self.is_open,
            load=self.load,
            slots=self.slots,
            problem=self.problem,
        )

    def is_due(self, engines: list[BackendSpec]) -> bool:
        """Returns whether to `ask` now. `engines`: those that it should have; the same list as long
        as nothing has changed."""
        if self.is_asked:
            return False
        now = time.monotonic()
        if not self.is_open:
            return now >= self._asked_at + (LOST_S if self._lost.is_set() else CLOSED_S)
        is_silent = self.load > 0 and now >= self._answered_at + SILENCE_S
        has_news = bool(self._farewells) or engines is not self._told
        return is_silent or has_news or now >= self._asked_at + self._rest_s

    async def ask(self, engines: list[BackendSpec], room: asyncio.Semaphore) -> str:
        """Returns what is wrong with it, if anything. Raises `ServiceCallError`, also if it cannot
        use an engine. `room`: held while it is asked."""
        self.is_asked, self._rest_s = True, random.uniform(*REST_S)
        try:
            async with room:
                return await self._ask(engines)
        finally:
            self.is_asked, self._asked_at = False, time.monotonic()

    async def _ask(self, engines: list[BackendSpec]) -> str:
        status = await self.questions.status()
        self.answers = True
        self.slots = sum(status.workers.get(one, 0) for one in (Stage.INIT, Stage.RUN)) or 1
        if status.is_stopping or status.failure is not None:
            self.is_open = False
            return "" if status.failure is None else f"has failed: {status.failure}"
        if status.version != __version__:
            self.is_open = False
            return (
                f"is prorl-service {status.version}, its front {__version__}: install one on both"
            )
        await self._farewells.tell(self.questions)
        await self._tell(engines, status)
        self.is_open = True
        return ""

    def _note_answer(self) -> None:
        self._answered_at, self._misses = time.monotonic(), 0
        self._lost.clear()

    def note_miss(self) -> None:
        self.answers = self.is_open = False
        self._misses += 1
        is_late = time.monotonic() >= self._answered_at + LOST_AFTER_S
        if is_late and self._misses >= LOST_AFTER_MISSES:
            self._lost.set()

    def give_up(self) -> None:
        """Makes its groups leave."""
        self.is_open = False
        self._lost.set()

    async def until_lost(self) -> None:
        """Raises `ServiceLost`."""
        await self._lost.wait()
        raise ServiceLost(f"it has not answered for {LOST_AFTER_S:g} s")

    @property
    def is_lost(self) -> bool:
        return self._lost.is_set()

    def abandon(self, group: Group) -> None:
        """Has the group cancelled there as soon as the service answers. `group`: as it was given to
        this service."""
        self._farewells.left[group.group_id] = group

    async def forget(self, group_id: str) -> None:
        """Has the service forget a group whose results are all here: now, or when it answers
        again."""
        self._farewells.ended.add(group_id)
        if self.is_open:
            try:
                await self._farewells.tell(self.questions)
            except Exception as bug:  # the boundary: a service's failure must not affect others
                log.info("service %s will hear later that groups have ended: %r", self.name, bug)

    async def settle(self, group_id: str) -> None:
        """Tells the service at once what it has yet to be told of a group that is about to be given
        to it again. Raises `ServiceCallError`."""
        if group_id in self._farewells:
            await self._farewells.tell(self.questions)

    async def _tell(self, engines: list[BackendSpec], status: ServiceStatus) -> None:
        """Reports the engines when they have changed, and every `RENEW_S` to renew their leases."""
        known = {one.url.rstrip("/") for one in status.backends if one.owner == self._owner}
        wanted = [one for one in engines if _is_up(one) or one.url.rstrip("/") in known]
        is_complete = known == {one.url.rstrip("/") for one in wanted}
        is_due = time.monotonic() > self._told_at + RENEW_S
        if engines is self._told and is_complete and not is_due:
            return
        # A front that has just begun may not have its engines yet: they stay.
        if wanted or self._told:
            update = {"lease_s": ENGINE_LEASE_S}
            leased = [one.model_copy(update=update) for one in wanted]
            await self.questions.put_backends(self._owner, leased)
        self._told, self._told_at = engines, time.monotonic()

    async def close(self) -> None:
        await self.client.aclose()


def _is_up(engine: BackendSpec) -> bool:
    return engine.report is None or engine.report.state is not BackendState.DOWN
