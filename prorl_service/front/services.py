"""The services that do the rollouts of a front: found, asked, and given the engines.

They come and go: a service gets rollouts only while it answers and is announced in a directory that
all see. `service` knows when to ask one.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from prorl_service.client import ServiceCallError
from prorl_service.errors import ProRLError
from prorl_service.front.claim import DirectoryClaim
from prorl_service.front.discovery import Announcements
from prorl_service.front.service import LOST_AFTER_S, Farewells, RolloutService
from prorl_service.inference.pool import BackendPool
from prorl_service.schemas import BackendSpec, ServiceBehind
from prorl_service.utils.tasks import Changes

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Seconds between looks into the directory."""
MAX_ASKED = 64
"""Most services asked in parallel: an answer is late if the front itself is busy."""


class Services:
    def __init__(self, claim: DirectoryClaim, token: str | None, engines: BackendPool) -> None:
        self._claim = claim
        self._announcements = Announcements(claim.directory)
        self._token = token
        self._engines = engines
        self._engine_changes = Changes()
        engines.watch(self._engine_changes.notify)
        self._services: dict[str, RolloutService] = {}
        """Services that are announced now, by name."""
        self._farewells: defaultdict[str, Farewells] = defaultdict(Farewells)
        """What services have yet to be told, by name: a service may come back elsewhere."""
        self._leaving: list[RolloutService] = []
        """Services that are announced no more; their rollouts may end there."""
        self._began_at = time.monotonic()
        self._room = asyncio.Semaphore(MAX_ASKED)
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

    async def until_answering(
        self, count: int, timeout_s: float, report: Callable[[str], None]
    ) -> None:
        """Returns when `count` services answer: a cluster starts them when it has room.

        `report` gets progress. Raises `ProRLError` after `timeout_s`, with what is known of each.
        """
        began_at, line = time.monotonic(), ""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    ready = sorted(one.name for one in self._services.values() if one.answers)
                    before, line = line, _answering(ready, count)
                    if line != before:
                        report(
                            f"{line}, after {time.monotonic() - began_at:.0f} s of {timeout_s:g}"
                        )
                    if len(ready) >= count:
                        return
                    await self._changes.wait()
        except TimeoutError:
            raise self._too_few(line) from None

    def _too_few(self, line: str) -> ProRLError:
        known = "".join(f"\n  {one.name}: {one.problem}" for one in self.statuses() if one.problem)
        return ProRLError(
            f"{line}{known}",
            hint=f"services announce themselves in {self._claim.directory}: check that their jobs "
            "run, and read their logs. Wait longer with --wait-s, or for fewer with --wait-for",
        )

    async def find(self, name: str, count: int) -> RolloutService | None:
        """Returns the named service, as soon as it is open, with `count` rollouts added to its
        load; None if it is lost, or is not open within `LOST_AFTER_S`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LOST_AFTER_S):
                while (service := self._open_one(name)) is None and not self._is_lost(name):
                    await self._changes.wait()
                if service is not None:
                    service.load += count
                return service
        return None

    def _is_lost(self, name: str) -> bool:
        service = self._services.get(name)
        if service is None:  # a front that has just begun may not have found it yet
            return time.monotonic() >= self._began_at + LOST_AFTER_S
        return service.is_lost

    def _open_one(self, name: str) -> RolloutService | None:
        """Returns the named service if it answers and is announced."""
        service = self._services.get(name)
        return service if service is not None and service.is_open else None

    def release(self, service: RolloutService, count: int = 1) -> None:
        service.load -= count
        self._changes.notify()

    def suspect(self, service: RolloutService) -> None:
        """Gives it nothing until it has answered again."""
        service.is_open = False

    async def serve(self) -> None:
        """Runs as long as the front. Raises `ProRLError` when another front has taken over."""
        engines: list[BackendSpec] = []
        try:
            async with asyncio.TaskGroup() as asking:
                while self._claim.lost_to is None:
                    self._update(await asyncio.to_thread(self._announcements.look))
                    await self._close_left()
                    states = self._engines.states()
                    offered = self._engines.offers(len(self._services))
                    engines = offered if offered != engines else engines
                    for service in (*self._services.values(), *self._leaving):
                        if service.is_due(engines):
                            asking.create_task(self._ask(service, engines))
                    await self._pause(states)
            await self._give_up()
        finally:
            for service in (*self._services.values(), *self._leaving):
                await service.close()
        raise ProRLError(
            f"the services in {self._claim.directory} now belong to {self._claim.lost_to}",
            hint="this front stalled for too long; stop it",
        )

    async def _pause(self, states: Mapping[str, tuple[str, int]]) -> None:
        """Returns after `LOOK_S`, or as soon as the states of the engines are no longer these."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                while self._engines.states() == states:
                    await self._engine_changes.wait()

    def _update(self, found: Mapping[str, str]) -> None:
        """`found`: URLs of the announced services, by name."""
        for name, known in list(self._services.items()):
            if found.get(name) != known.url:
                self._dismiss(known)
        for name in found.keys() - self._services.keys():
            farewells = self._farewells[name]
            self._services[name] = RolloutService(
                name, found[name], self._token, self.owner, farewells
            )

    def _dismiss(self, service: RolloutService) -> None:
        del self._services[service.name]
        self._leaving.append(service)
        service.is_announced = False
        log.info("service %s at %s takes no more rollouts", service.name, service.url)

    async def _close_left(self) -> None:
        for service in [one for one in self._leaving if not one.load and not one.is_asked]:
            self._leaving.remove(service)
            await service.close()

    async def _give_up(self) -> None:
        """Returns when no service has rollouts any more."""
        for service in list(self._services.values()):
            self._dismiss(service)
        for service in self._leaving:
            service.give_up()
        while self._leaving:
            await self._close_left()
            await asyncio.sleep(LOOK_S)

    async def _ask(self, service: RolloutService, engines: list[BackendSpec]) -> None:
        try:
            problem = await service.ask(engines, self._room)
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


def _answering(names: Sequence[str], count: int) -> str:
    return f"{len(names)} of {count} services answer ({', '.join(names) or 'none yet'})"
