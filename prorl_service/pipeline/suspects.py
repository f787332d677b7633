"""Rollouts with one attempt left, one of which may have ended the process each time.

All rollouts at work lose an attempt when the process dies, and most of them are innocent. So last
attempts are made one rollout at a time: if the process dies again, the culprit is clear, and the
others keep their last attempt.
"""

import logging
from collections import deque
from collections.abc import Callable

from prorl_service.rollouts.record import RolloutRecord

log = logging.getLogger(__name__)


class Suspects:
    def __init__(self, begin: Callable[[RolloutRecord], None]) -> None:
        self._begin = begin
        self._waiting = deque[RolloutRecord]()
        self._current: RolloutRecord | None = None

    def add(self, record: RolloutRecord) -> None:
        log.warning(
            "rollout %s was at work %d times when the process died; it has one attempt left",
            record.rollout_id,
            record.attempt,
        )
        self._waiting.append(record)
        if self._current is None:
            self._begin_next()

    def _begin_next(self) -> None:
        self._current = self._waiting.popleft() if self._waiting else None
        if self._current is not None:
            self._begin(self._current)
            self._current.watch(lambda _: self._begin_next())
