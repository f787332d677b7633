"""Live events: one bounded ring that all listeners read.

A listener is only a place in the ring, so a slow one costs no memory: it falls out of the ring and
gets a `reload` event. HTTP is not known here.
"""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from itertools import islice

from pydantic import JsonValue

from prorl_service.rollouts.observers import Observer
from prorl_service.rollouts.record import RolloutRecord
from prorl_service.schemas import Group, RolloutState
from prorl_service.schemas.views import Event, EventKind
from prorl_service.utils.tasks import Changes

RING = 8192
"""Events kept, after any of which a listener can resume."""
BATCH = 512
"""Most events in one batch."""
PAUSE_S = 0.1
"""Seconds between batches; events in between are sent together."""
HEARTBEAT_S = 10.0
"""Longest silence, in seconds."""

EngineStates = Mapping[str, tuple[str, int]]
"""States and policy versions of engines, by id."""


class EventHub(Observer):
    """The ring and its listeners. All methods are called in one event loop."""

    def __init__(self, run: str, size: int = RING) -> None:
        self._run = run
        self._ring: deque[tuple[EventKind, dict[str, JsonValue]]] = deque(maxlen=size)
        self._count = 0
        """Number of events so far; the last ones are in the ring."""
        self._epoch = secrets.token_hex(4)
        """Prefix of all ids, which tells them from those of another process."""
        self._changes = Changes()
        self._is_closed = False
        self._engines: dict[str, tuple[str, int]] = {}
        self._policy_version = 0
        self.listeners = 0

    def close(self) -> None:
        """Ends all listeners."""
        self._is_closed = True
        self._changes.notify()

    # --- what happens ---------------------------------------------------------------------------

    def accepted(self, group: Group) -> None:
        task = group.task
        self._add(
            "group", group_id=group.group_id, task_id=task.task_id, agent=task.agent, n=group.n
        )

    def moved(self, record: RolloutRecord) -> None:
        state, outcome = record.state, record.outcome if record.is_terminal else None
        data: dict[str, JsonValue] = {
            "rollout_id": record.rollout_id,
            "group_id": record.group.group_id,
            "state": state.value,
            "attempt": record.attempt,
        }
        if outcome is not None:
            is_failed = outcome.error is not None and state is RolloutState.FAILED
            data["blame"] = outcome.error.blame.value if outcome.error and is_failed else None
            data["reward"] = outcome.reward
            data["policy_version"] = outcome.newest_policy_version
        self._add("rollout", **data)

    def engines_are(self, engines: EngineStates, policy_version: int) -> None:
        """Adds an event for each difference. Call it after each change."""
        for backend_id, (state, version) in engines.items():
            if self._engines.get(backend_id) != (state, version):
                self._add("engine", backend_id=backend_id, state=state, policy_version=version)
        for backend_id in self._engines.keys() - engines.keys():
            self._add("engine", backend_id=backend_id, state=None, policy_version=None)
        self._engines = dict(engines)
        if policy_version != self._policy_version:
            self._policy_version = policy_version
            self._add("weights", policy_version=policy_version)

    def _add(self, kind: EventKind, **data: JsonValue) -> None:
        data["at"] = time.time()
        self._ring.append((kind, data))
        self._count += 1
        if self.listeners:
            self._changes.notify()

    # --- who listens ----------------------------------------------------------------------------

    async def listen(self, last_id: str | None) -> AsyncIterator[list[Event]]:
        """Yields batches of events after `last_id`, or from now on; an empty one after
        `HEARTBEAT_S` without events. Ends when the hub is closed."""
        self.listeners += 1
        try:
            place = self._place_after(last_id)
            if place is None:
                place = self._count
                yield [self._hello() if last_id is None else self._reload()]
            while True:
                first = self._count - len(self._ring)
                if place < first:
                    place = self._count
                    yield [self._reload()]
                    continue
                batch = list(islice(self._ring, place - first, place - first + BATCH))
                if batch:
                    yield [
                        Event(id=self._id(place + n), event=kind, data=data)
                        for n, (kind, data) in enumerate(batch, 1)
                    ]
                    place += len(batch)
                    await asyncio.sleep(PAUSE_S)
                elif self._is_closed:
                    yield [Event(event="end")]
                    return
                elif not await self._has_changed():
                    yield []
        finally:
            self.listeners -= 1

    async def _has_changed(self) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(HEARTBEAT_S):
                await self._changes.wait()
                return True
        return False

    def _place_after(self, last_id: str | None) -> int | None:
        """Returns None if the ring no longer has that event, or never had it."""
        epoch, _, number = (last_id or "").partition("-")
        if epoch != self._epoch or not (number.isascii() and number.isdigit()):
            return None
        place = int(number[:20])
        return place if self._count - len(self._ring) <= place <= self._count else None

    def _hello(self) -> Event:
        data: dict[str, JsonValue] = {"run": self._run, "policy_version": self._policy_version}
        return Event(id=self._id(self._count), event="hello", data=data)

    def _reload(self) -> Event:
        return Event(id=self._id(self._count), event="reload")

    def _id(self, number: int) -> str:
        return f"{self._epoch}-{number}"
