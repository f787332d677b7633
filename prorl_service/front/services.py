"""The services that do the rollouts of a front: found, probed, and given the engines.

They come and go: a service gets rollouts only while it answers and is announced in a directory that
all see. Knows of rollouts only how many a service has.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus

from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.errors import ProRLError
from prorl_service.front.claim import DirectoryClaim
from prorl_service.front.discovery import Announcements
from prorl_service.schemas import BackendSpec, Group, ServiceBehind, ServiceStatus, Stage
from prorl_service.utils.tasks import Changes

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Seconds between looks into the directory, and between probes of each service."""
STATUS_TIMEOUT_S = 3.0
"""Seconds of silence after which a probe counts as missed."""
LOST_AFTER_S = 10.0
"""Seconds without an answer after which a service is lost: its groups are given to others."""
LOST_AFTER_MISSES = 3
"""Fewest missed probes of a lost service: the front itself may have stalled."""
STREAM_IDLE_S = 15.0
"""Seconds of silence after which a stream is broken. Services send an empty line every 10 s."""
RENEW_S = 10.0
ENGINE_LEASE_S = 240.0
"""Seconds after which services forget the engines of a front that is gone: longer than they keep
its groups, which need the engines."""


class ServiceLost(Exception):
    """The service has not answered for some time."""


class RolloutService:
    """One service, at one address."""

    def __init__(self, name: str, url: str, token: str | None, owner: str) -> None:
        """`owner`: the front whose engines are added there."""
        self.name = name
        self.url = url
        self._owner = owner
        self.client = AsyncRolloutClient(
            url, token=token, retry_s=LOST_AFTER_S, idle_s=STREAM_IDLE_S
        )
        self.is_announced = True
        self.is_open = False
        """True while it answers, has the engines and takes rollouts."""
        self.problem = "not asked yet"
        self.slots = 1
        """Number of rollouts that keep it busy."""
        self.load = 0
        """Number of rollouts that it has been given and that have not ended."""
        self.questions = AsyncRolloutClient(url, token=token, retry_s=0, idle_s=STATUS_TIMEOUT_S)
        """Client for questions that are asked once and not waited for long."""
        self._lost = asyncio.Event()
        self._answered_at = time.monotonic()
        self._misses = 0
        """Consecutive missed probes."""
        self._abandoned: dict[str, Group] = {}
        """Groups that left it, by id; it may still have them."""
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

    async def ask(self, engines: list[BackendSpec]) -> str:
        """Returns what is wrong with it, if anything. Raises `ServiceCallError`, also if it cannot
        use an engine."""
        status = await self.questions.status()
        self.note_answer()
        self.slots = sum(status.workers.get(one, 0) for one in (Stage.INIT, Stage.RUN)) or 1
        if status.is_stopping or status.failure is not None:
            self.is_open = False
            return "" if status.failure is None else f"has failed: {status.failure}"
        await self._cancel_abandoned()
        await self._tell(engines, status)
        self.is_open = True
        return ""

    def note_answer(self) -> None:
        self._answered_at, self._misses = time.monotonic(), 0
        self._lost.clear()

    def note_miss(self) -> None:
        self.is_open = False
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

    def abandon(self, group: Group) -> None:
        """Has the group cancelled there as soon as the service answers."""
        self._abandoned[group.group_id] = group

    def reclaim(self, group: Group) -> None:
        """Keeps the group there: it is given to this service again, or cancelled already."""
        self._abandoned.pop(group.group_id, None)

    async def _cancel_abandoned(self) -> None:
        """Raises `ServiceCallError`."""
        for group in list(self._abandoned.values()):
            try:
                await self.questions.cancel(group.rollout_ids())
                await self.questions.acknowledge([group.group_id])
            except ServiceCallError as error:
                if error.http_status != HTTPStatus.NOT_FOUND:  # forgotten, or never known
                    raise
            self.reclaim(group)

    async def _tell(self, engines: list[BackendSpec], status: ServiceStatus) -> None:
        """Reports the engines when they have changed, and every `RENEW_S` to renew their leases."""
        wanted = {one.url.rstrip("/") for one in engines}
        own = (one for one in status.backends if one.owner == self._owner)
        known = {one.url.rstrip("/"): one.backend_id for one in own}
        is_due = time.monotonic() > self._told_at + RENEW_S
        if engines == self._told and wanted == known.keys() and not is_due:
            return
        for one in engines:
            leased = one.model_copy(update={"lease_s": ENGINE_LEASE_S, "owner": self._owner})
            await self.questions.add_backend(**dict(leased))
        told = {one.url.rstrip("/") for one in self._told}
        for url in known.keys() - wanted:
            # A front that has just begun may not have its engines yet.
            if engines or url in told:
                await self.questions.remove_backend(known[url])
        self._told, self._told_at = engines, time.monotonic()

    async def close(self) -> None:
        await self.client.aclose()
        await self.questions.aclose()


class Services:
    def __init__(
        self, claim: DirectoryClaim, token: str | None, engines: Callable[[], list[BackendSpec]]
    ) -> None:
        self._claim = claim
        self._announcements = Announcements(claim.directory)
        self._token = token
        self._engines = engines
        self._services: dict[str, RolloutService] = {}
        """Services that are announced now, by name."""
        self._changes = Changes()

    @property
    def owner(self) -> str:
        """Name of this front at the services, which distinguish fronts by it."""
        return self._claim.owner

    @property
    def slots(self) -> int:
        return sum(one.slots for one in self._services.values() if one.is_open)

    @property
    def load(self) -> int:
        """Rollouts that they have been given and that have not ended."""
        return sum(one.load for one in self._services.values())

    def statuses(self) -> list[ServiceBehind]:
        return [one.status() for _, one in sorted(self._services.items())]

    async def take(self, count: int) -> RolloutService:
        """Returns the least busy service, as soon as one has room, with `count` rollouts added to
        its load."""
        while not (free := [one for one in self._services.values() if one.has_room]):
            await self._changes.wait()
        service = min(free, key=lambda one: one.load / one.slots)
        service.load += count
        return service

    async def find(self, name: str, count: int) -> RolloutService | None:
        """Returns the named service, as soon as it is open, with `count` rollouts added to its
        load; None if it is not open within `LOST_AFTER_S`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LOST_AFTER_S):
                while (service := self._services.get(name)) is None or not service.is_open:
                    await self._changes.wait()
                service.load += count
                return service
        return None

    def release(self, service: RolloutService, count: int = 1) -> None:
        service.load -= count
        self._changes.notify()

    def suspect(self, service: RolloutService) -> None:
        """Gives it nothing until it has answered again."""
        service.is_open = False

    async def serve(self) -> None:
        """Runs as long as the front. Raises `ProRLError` when another front has taken over."""
        async with asyncio.TaskGroup() as watches:
            while self._claim.lost_to is None:
                found = await asyncio.to_thread(self._announcements.look)
                for name, known in list(self._services.items()):
                    if found.get(name) != known.url:
                        self._dismiss(known)
                for name in found.keys() - self._services.keys():
                    service = RolloutService(name, found[name], self._token, self.owner)
                    self._services[name] = service
                    watches.create_task(self._watch(service))
                await asyncio.sleep(LOOK_S)
            for known in list(self._services.values()):
                self._dismiss(known)
                known.give_up()
        raise ProRLError(
            f"the services in {self._claim.directory} now belong to {self._claim.lost_to}",
            hint="this front stalled for too long; stop it",
        )

    def _dismiss(self, service: RolloutService) -> None:
        del self._services[service.name]
        service.is_announced = False
        log.info("service %s at %s takes no more rollouts", service.name, service.url)

    async def _watch(self, service: RolloutService) -> None:
        """Probes the service until it is drained: its rollouts may end there."""
        try:
            while service.is_announced or service.load:
                await self._ask(service)
                await asyncio.sleep(LOOK_S)
        finally:
            await service.close()

    async def _ask(self, service: RolloutService) -> None:
        try:
            problem = await service.ask(self._engines())
        except ServiceCallError as error:
            service.note_miss()
            problem = "; ".join(str(error).splitlines())
        except Exception as bug:  # the boundary: a service's failure must not affect others
            service.note_miss()
            problem = f"cannot be used: {bug!r}"
        if problem != service.problem:
            text = "service %s at %s %s"
            level = logging.WARNING if problem else logging.INFO
            log.log(level, text, service.name, service.url, problem or "takes rollouts")
        service.problem = problem
        self._changes.notify()
