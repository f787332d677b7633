"""Rollouts that were at work at several deaths of the process, one of which may have caused them.

All rollouts at work lose an attempt when the process dies, and most of them are innocent. So those
with one attempt left are tested in halves, and all others wait: each death halves those that were
at work at all deaths, until one dies alone. Only that one is blamed; all that end are cleared.
"""

import logging
from collections.abc import Iterable
from itertools import groupby
from typing import Protocol

from prorl_service.rollouts.record import RolloutRecord

log = logging.getLogger(__name__)


def batches(suspects: Iterable[RolloutRecord]) -> list[list[RolloutRecord]]:
    """Returns what is begun together, in order: those at work at most deaths first, in halves."""
    ordered = sorted(suspects, key=lambda one: -one.counted_attempts)
    found = list[list[RolloutRecord]]()
    for _, group in groupby(ordered, key=lambda one: one.counted_attempts):
        like = [*group]
        middle = (len(like) + 1) // 2
        found += [half for half in (like[:middle], like[middle:]) if half]
    return found


class Beginner(Protocol):
    """Whoever begins rollouts; `pipeline.Pipeline` does."""

    def begin(self, record: RolloutRecord) -> None: ...

    def note_alone(self, alone: str) -> None:
        """Keeps a text for the next process, before anything is begun afterwards."""


class Suspects:
    def __init__(self, beginner: Beginner, *, max_attempts: int) -> None:
        self._beginner = beginner
        self._max_attempts = max_attempts
        self._restored: list[RolloutRecord] = []
        self._batches: list[list[RolloutRecord]] = []
        self._held: list[RolloutRecord] = []
        """Rollouts that wait until all suspects have ended."""
        self._open = 0
        """Number of rollouts of the current batch that have not ended."""
        self._has_begun = self._is_explained = False
        self.alone = ""
        """Rollout that was tested alone last, with its attempt."""

    def has_ended_the_process(self, record: RolloutRecord) -> bool:
        """Returns whether this restored rollout was alone at work when the process died."""
        died_alone = self.alone == f"{record.rollout_id} {record.attempt}"
        if died_alone and record.counted_attempts >= self._max_attempts:
            self._is_explained = True
            return True
        return False

    def put(self, record: RolloutRecord) -> None:
        """Begins a rollout, now or later."""
        if not self._has_begun:
            self._restored.append(record)
        elif self._open or self._batches:
            self._held.append(record)
        else:
            self._beginner.begin(record)

    def begin(self) -> None:
        """Call this once all rollouts of the process before are here."""
        self._has_begun = True
        least = max(1, self._max_attempts - 1)
        suspects, others = list[RolloutRecord](), list[RolloutRecord]()
        for record in self._restored:
            is_suspect = record.counted_attempts >= least and not self._is_explained
            (suspects if is_suspect else others).append(record)
        self._restored, self._held = [], others
        self._batches = batches(suspects)
        if suspects:
            log.warning(
                "%d rollouts were at work each time when the process died; they run in %d parts, "
                "and %d others wait",
                len(suspects),
                len(self._batches),
                len(others),
            )
        self._begin_next()

    def _begin_next(self) -> None:
        if not self._batches:
            held, self._held = self._held, []
            for record in held:
                self._beginner.begin(record)
            return
        batch = self._batches.pop(0)
        [only] = batch if len(batch) == 1 else [None]
        self.alone = f"{only.rollout_id} {only.attempt + 1}" if only is not None else ""
        self._beginner.note_alone(self.alone)
        self._open = len(batch)
        for record in batch:
            self._beginner.begin(record)
        for record in batch:
            record.watch(self._ended)

    def _ended(self, record: RolloutRecord) -> None:
        self._open -= 1
        if not self._open:
            self._begin_next()
