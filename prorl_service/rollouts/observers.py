"""Those who watch all rollouts of an executor, as they happen and in its event loop.

The only way to do so. Callers wait for rollouts of their own with `RolloutExecutor.ended`; what
reads the journal's file as it grows is a `journal.follower`.
"""

import logging
from collections.abc import Callable

from prorl_service.agents.base import RolloutContext
from prorl_service.rollouts.journal.tables import EndedRow
from prorl_service.rollouts.record import RolloutRecord
from prorl_service.schemas import Group

log = logging.getLogger(__name__)


class Observer:
    """What the methods do must take no time. An observer that raises is told nothing more."""

    def accepted(self, group: Group) -> None:
        """A group was accepted, or found unfinished at the start."""

    def moved(self, record: RolloutRecord) -> None:
        """A rollout has another state."""

    def changed(self, rollout: RolloutContext) -> None:
        """An attempt in this process began a stage or a model call, or got a reply or a result."""

    def ended(self, record: RolloutRecord, row: EndedRow) -> None:
        """A rollout's end is in the journal as `row`. The move and the callers come first."""


class Observers(Observer):
    """Several as one, each told in turn."""

    def __init__(self) -> None:
        self._observers: tuple[Observer, ...] = ()

    def add(self, observer: Observer) -> None:
        self._observers = (*self._observers, observer)

    @property
    def on_change(self) -> Callable[[RolloutContext], None] | None:
        """None if none of them has `changed`, so that turns then cost nothing."""
        is_wanted = any(type(one).changed is not Observer.changed for one in self._observers)
        return self.changed if is_wanted else None

    def accepted(self, group: Group) -> None:
        self._tell(lambda one: one.accepted(group))

    def moved(self, record: RolloutRecord) -> None:
        self._tell(lambda one: one.moved(record))

    def changed(self, rollout: RolloutContext) -> None:
        self._tell(lambda one: one.changed(rollout))

    def ended(self, record: RolloutRecord, row: EndedRow) -> None:
        self._tell(lambda one: one.ended(record, row))

    def _tell(self, news: Callable[[Observer], None]) -> None:
        """The boundary to observers: their bugs cost no rollout."""
        for observer in self._observers:
            try:
                news(observer)
            except Exception:
                log.exception("rollouts go on without %s, which failed", type(observer).__name__)
                self._observers = tuple(one for one in self._observers if one is not observer)
