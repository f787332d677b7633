"""Lists of rollouts that are sorted, counted, and filtered by patterns of names."""

import re
import sqlite3
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.client import AsyncRolloutClient
from prorl_service.schemas import RolloutState
from prorl_service.schemas.views import GroupQuery, RolloutQuery, RolloutSort
from prorl_service.shelf.rows import FIGURES, figure_of, fits, globbed
from tests.server.application import until
from tests.server.scored_agent import scored

REWARDS = (0.5, 0.0, 1.0, 0.25)


@pytest.fixture
async def listed(client: AsyncRolloutClient) -> AsyncRolloutClient:
    """A service with ended rollouts on the shelf, ended ones that wait for siblings, and two that
    run."""
    groups = [scored(f"g{number}", reward, task_id=f"q{number}") for number, reward in
              enumerate(REWARDS)]  # fmt: skip
    await client.submit(groups)
    await client.wait([f"g{number}.0" for number in range(len(REWARDS))], 60)
    await client.acknowledge(["g0", "g1"])
    mixed = scored("slow", 0.75, 1, 1)
    mixed.task.data["sleep"] = [0, 1000, 1000]
    await client.submit([mixed])
    await client.wait(["slow.0"], 60)
    running = RolloutQuery(state=[RolloutState.RUNNING])

    async def both() -> int:
        return len((await client.rollouts(running)).rollouts)

    await until(both, lambda count: count == 2)
    return client


@pytest.mark.parametrize("sort", [one for one in RolloutSort if one is not RolloutSort.NEWEST])
async def test_each_order_is_that_of_its_figure(
    listed: AsyncRolloutClient, sort: RolloutSort
) -> None:
    rows = (await listed.rollouts(RolloutQuery(sort=sort))).rollouts
    column, is_descending = FIGURES[sort]
    values = [figure_of(row, column) for row in rows]
    assert None not in values
    assert values == sorted(values, key=float, reverse=is_descending)  # type: ignore[arg-type]
    assert len({row.rollout_id for row in rows}) == len(rows)
    assert len(rows) == (5 if sort in (RolloutSort.BEST, RolloutSort.WORST) else 7)
    first = (await listed.rollouts(RolloutQuery(sort=sort, limit=2))).rollouts
    assert [figure_of(row, column) for row in first][:1] == pytest.approx(values[:1], abs=60)
    assert len(first) == 2


async def test_a_sorted_list_has_one_page(listed: AsyncRolloutClient) -> None:
    assert (await listed.rollouts(RolloutQuery(sort=RolloutSort.WORST, limit=1))).next is None
    first = await listed.rollouts(RolloutQuery(limit=1))
    with pytest.raises(ValueError, match="sort=worst has one page: leave out `before`"):
        RolloutQuery(sort=RolloutSort.WORST, before=first.next)


async def test_what_matches_is_counted_once(listed: AsyncRolloutClient) -> None:
    async def matches(**wanted: object) -> int | None:
        query = RolloutQuery.model_validate({"count": True, "limit": 1, **wanted})
        return (await listed.rollouts(query)).matches

    assert await matches() == 7
    assert await matches(state=["running"]) == 2
    assert await matches(state=["done"]) == 5
    assert await matches(task_id="q*") == 4
    assert await matches(task_id="q1") == 1
    assert await matches(group_id="*low*", sort="worst") == 3
    assert (await listed.rollouts(RolloutQuery(limit=1))).matches is None


async def test_names_are_found_by_patterns_in_both_lists(listed: AsyncRolloutClient) -> None:
    found = (await listed.groups(GroupQuery(task_id="q*"))).groups
    assert {row.group_id for row in found} == {"g0", "g1", "g2", "g3"}
    running = RolloutQuery(group_id="s*w", state=[RolloutState.RUNNING])
    assert len((await listed.rollouts(running)).rollouts) == 2
    assert (await listed.groups(GroupQuery(group_id="[gs]*"))).groups == []


NAMES = st.text(st.sampled_from("ab[]?*!-"), max_size=6)


@given(NAMES, NAMES)
def test_a_star_alone_is_special(value: str, pattern: str) -> None:
    """In memory and on the shelf."""
    expected = "".join(".*" if one == "*" else re.escape(one) for one in pattern)
    is_expected = re.fullmatch(expected, value, re.DOTALL) is not None
    with closing(sqlite3.connect(":memory:")) as db:
        (found,) = db.execute("SELECT ? GLOB ?", (value, globbed(pattern))).fetchone()
    assert fits(value, pattern) == bool(found) == is_expected
