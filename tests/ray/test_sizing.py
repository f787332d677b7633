"""The wanted number of nodes: what holds for all demands, and a simulated cluster."""

import random
from collections.abc import Callable
from heapq import heappop, heappush
from math import ceil
from statistics import fmean

from hypothesis import given
from hypothesis import strategies as st

from prorl_service.ray.demand import Demand, nodes_wanted, within

DEMANDS = st.lists(st.integers(0, 5000), min_size=1, max_size=30)
SLOTS = st.integers(1, 128)
MOST = 50


@given(DEMANDS, SLOTS, st.integers(0, 100), st.integers(0, 10), st.integers(10, 40))
def test_the_number_stays_within_its_bounds(
    rollouts: list[int], slots: int, current: int, least: int, most: int
) -> None:
    found = nodes_wanted(rollouts, slots=slots, current=current, least=least, most=most)
    assert least <= found <= most


@given(st.integers(0, 5000), SLOTS, st.integers(0, MOST))
def test_a_demand_of_a_minute_gets_exactly_the_nodes_that_it_fills(
    rollouts: int, slots: int, current: int
) -> None:
    found = nodes_wanted([rollouts] * 20, slots=slots, current=current, least=0, most=MOST)
    assert found == min(MOST, ceil(rollouts / slots))


@given(DEMANDS, SLOTS, st.integers(0, MOST), st.integers(0, 29), st.integers(0, 5000))
def test_more_demand_never_wants_fewer_nodes(
    rollouts: list[int], slots: int, current: int, place: int, more: int
) -> None:
    larger = list(rollouts)
    larger[place % len(larger)] += more
    pair = [
        nodes_wanted(one, slots=slots, current=current, least=0, most=MOST)
        for one in (rollouts, larger)
    ]
    assert pair[0] <= pair[1]


@given(DEMANDS, SLOTS)
def test_no_node_is_given_back_that_the_last_minute_filled(rollouts: list[int], slots: int) -> None:
    found = nodes_wanted(rollouts, slots=slots, current=10**6, least=0, most=10**6)
    assert found == ceil(max(rollouts) / slots)


@given(st.lists(st.integers(65, 127), min_size=13, max_size=60))
def test_a_demand_between_two_numbers_does_not_flap(rollouts: list[int]) -> None:
    seen, current = set(), 2
    for count in range(1, len(rollouts) + 1):
        recent = rollouts[max(0, count - 12) : count]
        current = nodes_wanted(recent, slots=64, current=current, least=0, most=MOST)
        seen.add(current)
    assert seen == {2}


# --- a simulated cluster ------------------------------------------------------------------------

SLOTS_EACH, LENGTH_S, NODE_START_S, LOOK_S = 64, 120.0, 45.0, 2.0
DRAWS = 640


class Simulated:
    """Rollouts arrive at random and take `LENGTH_S`; nodes come `NODE_START_S` after the wish, and
    go immediately once idle: what runs ends first."""

    def __init__(self, rate: Callable[[float], float], seed: int) -> None:
        self._rate = rate
        self._random = random.Random(seed)
        self._ends: list[float] = []
        self._coming: list[float] = []
        self.queued = 0
        self.nodes = 0
        self.current = 0
        self._demands: list[Demand] = []

    def step(self, now_s: float) -> None:
        share = self._rate(now_s) * LOOK_S / DRAWS
        self.queued += sum(self._random.random() < share for _ in range(DRAWS))
        while self._ends and self._ends[0] <= now_s:
            heappop(self._ends)
        while self._coming and self._coming[0] <= now_s:
            heappop(self._coming)
            self.nodes += 1
        while self.queued and len(self._ends) < self.nodes * SLOTS_EACH:
            self.queued -= 1
            heappush(self._ends, now_s + self._random.expovariate(1 / LENGTH_S))
        self._scale(now_s)

    def _scale(self, now_s: float) -> None:
        self._demands.append(Demand(now_s, len(self._ends) + self.queued))
        self._demands = within(self._demands, now_s)
        recent = [one.rollouts for one in self._demands]
        self.current = nodes_wanted(
            recent, slots=SLOTS_EACH, current=self.current, least=0, most=MOST
        )
        for _ in range(self.current - self.nodes - len(self._coming)):
            heappush(self._coming, now_s + NODE_START_S)
        busy = ceil(len(self._ends) / SLOTS_EACH)
        self.nodes = max(min(self.nodes, self.current), busy)

    @property
    def busy(self) -> float:
        """Share of slots that have a rollout."""
        return len(self._ends) / (self.nodes * SLOTS_EACH) if self.nodes else 1.0


def test_a_cluster_follows_its_arrivals_up_and_down() -> None:
    """Arrivals that 8 nodes can do, then none: the queue is short, nodes are busy, and all go."""
    sized = Simulated(lambda now_s: 4.0 if now_s < 3600 else 0.0, seed=1)
    queued, busy, changes, before = [], [], 0, 0
    for look in range(int(5400 / LOOK_S)):
        sized.step(look * LOOK_S)
        if 900 <= look * LOOK_S < 3600:
            queued.append(sized.queued)
            busy.append(sized.busy)
            changes += sized.current != before
        before = sized.current
    assert fmean(queued) < SLOTS_EACH
    assert fmean(busy) > 0.8
    assert changes < 60
    assert sized.nodes == sized.current == 0


def test_a_burst_is_met_within_minutes() -> None:
    """640 rollouts at once fill ten nodes; a wave of half an hour ends before the next begins."""
    sized = Simulated(lambda now_s: 320.0 if now_s % 1800 < 2 else 0.0, seed=2)
    most = 0
    for look in range(int(1700 / LOOK_S)):
        sized.step(look * LOOK_S)
        most = max(most, sized.nodes)
    assert 5 <= most <= 11
    assert sized.nodes == sized.queued == 0
