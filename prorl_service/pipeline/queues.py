"""The order in which a stage's workers get waiting rollouts. No rollout is dropped here.

INIT's queue takes the highest priority first; within one, clients take turns, so that a client with
ten thousand rollouts cannot starve one with eight; siblings of a group stay together. Later stages
take rollouts in the order of arrival.
"""

import asyncio
from bisect import insort
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, count

from prorl_service.rollouts.record import RolloutRecord


class FifoQueue(asyncio.Queue[RolloutRecord]):
    def _init(self, maxsize: int) -> None:
        self._queue = deque[RolloutRecord]()

    def __iter__(self) -> Iterator[RolloutRecord]:
        return iter(self._queue)


@dataclass(order=True, slots=True)
class _Turn:
    """One group's place in the order."""

    minus_priority: int
    start: int
    number: int
    records: deque[RolloutRecord] = field(default_factory=deque, compare=False)


class FairQueue(asyncio.Queue[RolloutRecord]):
    """Start-time fair queueing, with a rollout as the unit of service.

    Each priority has a clock that counts the rollouts begun. A group starts when its client's last
    group has been served or, if that client had nothing queued, now. The earliest goes first.
    """

    def _init(self, maxsize: int) -> None:
        self._queue: list[_Turn] = []
        self._by_group: dict[str, _Turn] = {}
        self._numbers = count()
        self._length = 0
        self._reset()

    def _reset(self) -> None:
        self._clocks: dict[int, int] = {}
        self._served: dict[tuple[int, str | None], int] = {}
        """Clock reading at which everything that a client queued at a priority will be served."""

    def qsize(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[RolloutRecord]:
        return chain.from_iterable(turn.records for turn in self._queue)

    def _put(self, item: RolloutRecord) -> None:
        group = item.group
        client = group.priority, group.submitter
        turn = self._by_group.get(group.group_id)
        if turn is None:
            start = self._clocks.get(group.priority, 0)
            if not item.attempt:  # a rollout that was begun before has had its turn
                start = max(start, self._served.get(client, 0))
            turn = _Turn(-group.priority, start, next(self._numbers))
            insort(self._queue, turn)
            self._by_group[group.group_id] = turn
            self._served[client] = max(start, self._served.get(client, 0))
        turn.records.append(item)
        self._served[client] += 1
        self._length += 1

    def _get(self) -> RolloutRecord:
        turn = self._queue[0]
        self._clocks[-turn.minus_priority] = turn.start
        record = turn.records.popleft()
        self._length -= 1
        if not turn.records:
            del self._queue[0]
            del self._by_group[record.group.group_id]
        if not self._queue:
            self._reset()
        return record
