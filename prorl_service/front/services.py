"""The services that do the rollouts of a front: found, asked how they are, told of the engines.

They come and go: each is announced in a directory that all see, takes rollouts while it is and
answers, and is given no more as soon as it is not. Knows of rollouts only how many a service has.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

from prorl_service.announcement import announced
from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.schemas import BackendSpec, ServiceStatus, Stage

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Between looks into the directory, and between questions to each service."""
LOST_AFTER_S = 10.0
"""Without an answer, and what a service has is given to another."""
RENEW_S = 10.0
ENGINE_LEASE_S = 60.0
"""Services forget the engines of a front that is gone."""


class RolloutService:
    """One of them, at one address."""

    def __init__(self, name: str, url: str, token: str | None) -> None:
        self.name = name
        self.url = url
        self.client = AsyncRolloutClient(url, token=token, retry_s=LOST_AFTER_S)
        self.is_announced = True
        self.is_open = False
        """It answers, has the engines, and takes rollouts."""
        self.problem = "not asked yet"
        self.slots = 1
        """Rollouts that keep it busy."""
        self.load = 0
        """Rollouts that it has been given and that have not ended."""
        self._questions = AsyncRolloutClient(url, token=token, retry_s=0)
        self._told: list[BackendSpec] = []
        self._told_at = 0.0

    @property
    def has_room(self) -> bool:
        return self.is_announced and self.is_open and self.load < self.slots

    async def ask(self, engines: list[BackendSpec]) -> None:
        """Raises `ServiceCallError`: also where it cannot use an engine."""
        status = await self._questions.status()
        if not status.is_stopping:
            await self._tell(engines, status)
        self.slots = sum(status.workers.get(one, 0) for one in (Stage.INIT, Stage.RUN)) or 1
        self.is_open = not status.is_stopping

    async def _tell(self, engines: list[BackendSpec], status: ServiceStatus) -> None:
        """Of the engines, when they have changed, and now and then to renew their leases."""
        wanted = {one.url.rstrip("/") for one in engines}
        known = {one.url.rstrip("/"): one.backend_id for one in status.backends}
        is_due = time.monotonic() > self._told_at + RENEW_S
        if engines == self._told and wanted == known.keys() and not is_due:
            return
        for one in engines:
            leased = one.model_copy(update={"lease_s": ENGINE_LEASE_S})
            await self._questions.add_backend(**dict(leased))
        for url in known.keys() - wanted:
            await self._questions.remove_backend(known[url])
        self._told, self._told_at = engines, time.monotonic()

    async def close(self) -> None:
        await self.client.aclose()
        await self._questions.aclose()


class Services:
    def __init__(
        self, directory: Path, token: str | None, engines: Callable[[], list[BackendSpec]]
    ) -> None:
        self._directory = directory
        self._token = token
        self._engines = engines
        self._services: dict[str, RolloutService] = {}
        """Announced now, by name."""
        self._changed = asyncio.Event()
        """Replaced at each change."""

    @property
    def slots(self) -> int:
        return sum(one.slots for one in self._services.values() if one.is_open)

    async def take(self, count: int) -> RolloutService:
        """The one that is least busy, `count` rollouts its own from now on, as soon as one has
        room."""
        while not (free := [one for one in self._services.values() if one.has_room]):
            await self._changed.wait()
        service = min(free, key=lambda one: one.load / one.slots)
        service.load += count
        return service

    def release(self, service: RolloutService, count: int = 1) -> None:
        service.load -= count
        self._announce_change()

    def suspect(self, service: RolloutService) -> None:
        """It is given nothing until it has answered again."""
        service.is_open = False

    def _announce_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def serve(self) -> None:
        """Runs as long as the front."""
        async with asyncio.TaskGroup() as watches:
            while True:
                found = await asyncio.to_thread(announced, self._directory)
                for name, known in list(self._services.items()):
                    if found.get(name) != known.url:
                        del self._services[name]
                        known.is_announced = False
                        log.info("service %s at %s takes no more rollouts", name, known.url)
                for name in found.keys() - self._services.keys():
                    service = RolloutService(name, found[name], self._token)
                    self._services[name] = service
                    watches.create_task(self._watch(service))
                await asyncio.sleep(LOOK_S)

    async def _watch(self, service: RolloutService) -> None:
        """What a service that drains still has may come to its end there."""
        try:
            while service.is_announced or service.load:
                await self._ask(service)
                await asyncio.sleep(LOOK_S)
        finally:
            await service.close()

    async def _ask(self, service: RolloutService) -> None:
        try:
            await service.ask(self._engines())
            problem = ""
        except ServiceCallError as error:
            service.is_open = False
            problem = str(error)
        if problem != service.problem:
            text = "service %s at %s %s"
            level = logging.WARNING if problem else logging.INFO
            log.log(level, text, service.name, service.url, problem or "takes rollouts")
        service.problem = problem
        self._announce_change()
