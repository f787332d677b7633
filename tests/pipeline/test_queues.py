"""The order in which rollouts begin."""

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from prorl_service.pipeline.queues import FairQueue
from prorl_service.rollouts.journal import Journal
from prorl_service.rollouts.record import Admitted, RolloutRecord
from prorl_service.schemas import Group
from tests import builders


def records(
    group_id: str, n: int, *, priority: int = 0, client: str | None = None
) -> list[RolloutRecord]:
    group = Group(group_id=group_id, task=builders.task(), n=n, priority=priority, client=client)
    journal = Journal.__new__(Journal)
    return [RolloutRecord(Admitted(group), index, journal) for index in range(n)]


def order(queue: FairQueue) -> list[str]:
    return [queue.get_nowait().rollout_id for _ in range(queue.qsize())]


def fill(*groups: list[RolloutRecord]) -> FairQueue:
    queue = FairQueue()
    for group in groups:
        for record in group:
            queue.put_nowait(record)
    return queue


def test_higher_priorities_go_first_and_groups_stay_together() -> None:
    queue = fill(records("a", 2), records("b", 2, priority=5), records("c", 1))
    assert order(queue) == ["b.0", "b.1", "a.0", "a.1", "c.0"]


def test_a_client_with_many_rollouts_does_not_delay_one_with_few() -> None:
    many = [records(f"m{i}", 4, client="much") for i in range(50)]
    queue = fill(*many, records("few", 4, client="little"))
    assert order(queue).index("few.0") <= 8


def test_a_client_that_comes_late_gets_no_credit_for_the_past() -> None:
    queue = fill(*(records(f"a{i}", 1, client="a") for i in range(20)))
    for _ in range(10):
        queue.get_nowait()
    for group in [records(f"b{i}", 1, client="b") for i in range(10)]:
        queue.put_nowait(group[0])
    first = order(queue)[:10]
    assert abs(sum(one.startswith("a") for one in first) - 5) <= 1


@given(
    st.lists(
        st.tuples(st.integers(1, 5), st.integers(-2, 2), st.sampled_from([None, "x", "y"])),
        max_size=30,
    )
)
def test_all_groups_come_out_once_by_priority_and_whole(
    groups: list[tuple[int, int, str | None]],
) -> None:
    made = [
        records(f"g{number}", n, priority=priority, client=client)
        for number, (n, priority, client) in enumerate(groups)
    ]
    queue = fill(*made)
    assert [record.rollout_id for record in queue] == order(fill(*made))
    out = [queue.get_nowait() for _ in range(queue.qsize())]
    assert Counter(out) == Counter(record for group in made for record in group)
    priorities = [record.group.priority for record in out]
    assert priorities == sorted(priorities, reverse=True)
    changes = sum(a.group is not b.group for a, b in pairwise(out))
    assert changes == max(0, len(made) - 1)
