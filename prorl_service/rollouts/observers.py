"""Observers of all rollouts of an executor, called as things happen and in its event loop.

There is no other way to watch them all. Callers wait for their own rollouts with
`RolloutExecutor.ended`; a `journal.follower` reads the journal's file as it grows.
"""

import logging
from collections.abc import Callable

from prorl_service.attempt import Attempt
from prorl_service.rollouts.journal.tables import EndedRow
from prorl_service.rollouts.record import RolloutRecord
from prorl_service.schemas import Group

log = logging.getLogger(__name__)


class Observer:
    """Base of observers. Methods must return immediately; an observer that raises is removed."""

    def accepted(self, group: Group) -> None:
        """Called when a group was accepted, or found unfinished at the start."""

    def moved(self, record: RolloutRecord) -> None:
        """Called when a rollout changed its state."""

    def changed(self, attempt: Attempt) -> None:
        """Called when an attempt in this process began a stage or a model call, or got a reply or a
        result."""

    def ended(self, record: RolloutRecord, row: EndedRow) -> None:
        """Called when a rollout's end is in the journal as `row`, after `moved` and the callers."""


class Observers(Observer):
    """Several observers as one, called in turn."""

    def __init__(self) -> None:
        self._observers: tuple[Observer, ...] = ()

    def add(self, observer: Observer) -> None:
        self._observers = (*self._observers, observer)

    @property
    def on_change(self) -> Callable[[Attempt], None] | None:
        """None if no observer overrides `changed`, so that turns cost nothing then."""
        is_wanted = any(type(one).changed is not Observer.changed for one in self._observers)
        return self.changed if is_wanted else None

    def accepted(self, group: Group) -> None:
        self._tell(lambda one: one.accepted(group))

    def moved(self, record: RolloutRecord) -> None:
        self._tell(lambda one: one.moved(record))

    def changed(self, attempt: Attempt) -> None:
        self._tell(lambda one: one.changed(attempt))

    def ended(self, record: RolloutRecord, row: EndedRow) -> None:
        self._tell(lambda one: one.ended(record, row))

    def _tell(self, news: Callable[[Observer], None]) -> None:
        """Calls the observers, and removes one that raises: its bugs must not cost a rollout."""
        for observer in self._observers:
            try:
                news(observer)
            except Exception:
                log.exception("%s failed, rollouts continue without it", type(observer).__name__)
                self._observers = tuple(one for one in self._observers if one is not observer)
