"""A rollout that ends the process is found in few deaths, and no other is blamed or run alone."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.pipeline.suspects import Suspects
from prorl_service.rollouts.record import RolloutRecord

MAX_ATTEMPTS = 3


@dataclass(eq=False)
class Record:
    """What `Suspects` knows of a record; it is made again at each start, as records are."""

    rollout_id: str
    attempt: int
    watchers: list[Callable[[Any], None]] = field(default_factory=list)

    @property
    def counted_attempts(self) -> int:
        return self.attempt

    def watch(self, watcher: Callable[[Any], None]) -> None:
        self.watchers.append(watcher)

    def end(self) -> None:
        for watcher in self.watchers:
            watcher(self)


class World:
    """Starts of a service whose process dies as soon as one of the culprits is at work."""

    def __init__(self, n: int, culprits: Collection[int]) -> None:
        self.attempts = {str(i): 0 for i in range(n)}
        self.culprits = {str(i) for i in culprits}
        self.deaths = 0
        self.blamed = set[str]()
        self.ended = set[str]()
        self.most_rounds = 0
        self.note = ""

    def begin(self, record: RolloutRecord) -> None:
        self.begun.append(cast(Record, record))

    def note_alone(self, alone: str) -> None:
        self.note = alone

    def start(self) -> bool:
        """Runs until the process dies or all has ended. Returns whether it died."""
        begun = self.begun = list[Record]()
        suspects = Suspects(self, max_attempts=MAX_ATTEMPTS)
        suspects.alone = self.note
        for rollout_id, attempt in self.attempts.items():
            if rollout_id in self.ended | self.blamed:
                continue
            record = cast(RolloutRecord, Record(rollout_id, attempt))
            if suspects.has_ended_the_process(record):
                self.blamed.add(rollout_id)
            else:
                suspects.put(record)
        suspects.begin()
        rounds = 0
        while begun:
            at_work, begun[:] = [*begun], []
            rounds += 1
            for one in at_work:
                self.attempts[one.rollout_id] += 1
            if self.culprits & {one.rollout_id for one in at_work}:
                self.deaths += 1
                return True
            self.ended |= {one.rollout_id for one in at_work}
            for one in at_work:
                one.end()
        self.most_rounds = max(self.most_rounds, rounds)
        return False


def played(n: int, culprits: Collection[int]) -> World:
    world = World(n, culprits)
    while world.start():
        assert world.deaths < 1000
    return world


@pytest.mark.parametrize("culprit", range(64))
def test_one_of_64_is_found_in_8_deaths(culprit: int) -> None:
    world = played(64, [culprit])
    assert world.deaths <= 8
    assert world.blamed == {str(culprit)}
    assert len(world.ended) == 63
    assert world.most_rounds <= 1  # all others run at once when it is found


@given(st.integers(1, 70), st.data())
def test_all_culprits_are_found_and_nobody_else(n: int, data: st.DataObject) -> None:
    culprits = data.draw(st.sets(st.integers(0, n - 1), max_size=4))
    world = played(n, culprits)
    assert world.blamed == world.culprits
    assert len(world.ended) == n - len(culprits)
    least = max(MAX_ATTEMPTS, (n - 1).bit_length() + 2)
    assert world.deaths <= len(culprits) * (least + 1)
