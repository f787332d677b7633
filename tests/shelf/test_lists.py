"""Lists against a model in plain Python: every filter, every page, groups as well as rollouts."""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorl_service.errors import InvalidRequest
from prorl_service.schemas import Blame, FinishReason, Group, Rollout, RolloutState
from prorl_service.schemas.views import GroupOutcome, RolloutRow, RowFilter
from prorl_service.shelf import queries
from prorl_service.shelf.rows import Key, key_of, key_of_group
from tests.shelf.shelved import ROWS_ONLY, accept, end, ended, shelf_at, submitted

AGENTS, TASKS, RUNS = ("math", "swe"), ("t1", "t2"), ("first", "second")
REWARDS = (0.0, 0.25, 1.0)
FAR = 1e12
"""A time at which all has ended."""
ENDS = (RolloutState.DONE, RolloutState.FAILED, RolloutState.CANCELLED)


@dataclass(frozen=True)
class Case:
    """A group, and how its first rollouts ended."""

    group: Group
    created_at: float
    run: str
    rollouts: Sequence[Rollout]


@st.composite
def cases(draw: st.DrawFn, name: str) -> Case:
    """Creation times collide, as those of one submission do."""
    group = submitted(
        name,
        draw(st.integers(1, 3)),
        agent=draw(st.sampled_from(AGENTS)),
        task_id=draw(st.sampled_from(TASKS)),
    )
    created_at = float(draw(st.integers(1, 3)))
    count = draw(st.integers(1, group.n))
    return Case(
        group,
        created_at,
        draw(st.sampled_from(RUNS)),
        [draw(rollouts(group, index, created_at)) for index in range(count)],
    )


@st.composite
def rollouts(draw: st.DrawFn, group: Group, index: int, created_at: float) -> Rollout:
    state = draw(st.sampled_from(ENDS))
    is_done = state is RolloutState.DONE
    return ended(
        group,
        index,
        state=state,
        reward=draw(st.sampled_from(REWARDS)) if is_done else None,
        blame=None if is_done else draw(st.sampled_from(list(Blame))),
        reason=draw(st.sampled_from(list(FinishReason))),
        version=draw(st.none() | st.integers(0, 3)),
        created_at=created_at,
    )


@st.composite
def worlds(draw: st.DrawFn) -> list[Case]:
    names = draw(st.lists(st.sampled_from("abcdefghij"), max_size=8, unique=True))
    return [draw(cases(name)) for name in names]


def some(values: Sequence[Any]) -> st.SearchStrategy[list[Any]]:
    return st.just([]) | st.lists(st.sampled_from(values), min_size=1, max_size=2, unique=True)


filters = st.builds(
    RowFilter,
    run=st.none() | st.sampled_from([*RUNS, "nobody's"]),
    agent=some([*AGENTS, "nobody"]),
    task_id=st.none() | st.sampled_from(TASKS),
    group_id=st.none() | st.sampled_from("abcdefghij"),
    state=some([*ENDS, RolloutState.RUNNING]),
    blame=some(list(Blame)),
    finish_reason=some(list(FinishReason)),
    policy_version=st.none() | st.integers(0, 3),
    reward_min=st.none() | st.sampled_from([*REWARDS, 0.1]),
    reward_max=st.none() | st.sampled_from([*REWARDS, 0.6]),
    created_before=st.none() | st.sampled_from([1.0, 2.5]),
    ended_after=st.none() | st.sampled_from([1.0, FAR]),
)


# --- the model ----------------------------------------------------------------------------------


def is_wanted(rollout: Rollout, case: Case, wanted: RowFilter) -> bool:
    """Rewards apart. The service's version is 0: those that sampled nothing count for it."""
    blame = rollout.error.blame if rollout.error and rollout.state is RolloutState.FAILED else None
    reason = rollout.trajectory.finish_reason if rollout.trajectory else None
    version = rollout.newest_policy_version or 0
    return all(
        (
            wanted.run in (None, case.run),
            not wanted.agent or rollout.agent in wanted.agent,
            wanted.task_id in (None, rollout.task_id),
            wanted.group_id in (None, rollout.group_id),
            not wanted.state or rollout.state in wanted.state,
            not wanted.blame or blame in wanted.blame,
            not wanted.finish_reason or reason in wanted.finish_reason,
            wanted.policy_version in (None, version),
            wanted.created_before is None or case.created_at <= wanted.created_before,
            wanted.ended_after != FAR,
        )
    )


def has_reward(reward: float | None, wanted: RowFilter) -> bool:
    if wanted.reward_min is None and wanted.reward_max is None:
        return True
    return (
        reward is not None
        and (wanted.reward_min is None or reward >= wanted.reward_min)
        and (wanted.reward_max is None or reward <= wanted.reward_max)
    )


def newest_first(world: list[Case]) -> list[Case]:
    return sorted(world, key=lambda one: (one.created_at, one.group.group_id), reverse=True)


def expected_rollouts(world: list[Case], wanted: RowFilter) -> list[str]:
    return [
        rollout.rollout_id
        for case in newest_first(world)
        for rollout in case.rollouts
        if is_wanted(rollout, case, wanted) and has_reward(rollout.reward, wanted)
    ]


def outcome(case: Case) -> GroupOutcome:
    rewards = [one.reward for one in case.rollouts if one.reward is not None]
    if len(case.rollouts) < case.group.n:
        return GroupOutcome.OPEN
    if not rewards:
        return GroupOutcome.UNSCORED
    if len(set(rewards)) > 1:
        return GroupOutcome.INFORMATIVE
    return {0.0: GroupOutcome.ALL_ZERO, 1.0: GroupOutcome.ALL_ONE}.get(
        rewards[0], GroupOutcome.ALL_EQUAL
    )


def expected_groups(
    world: list[Case], wanted: RowFilter, outcomes: Sequence[GroupOutcome]
) -> list[str]:
    found = []
    for case in newest_first(world):
        rewards = [one.reward for one in case.rollouts if one.reward is not None]
        mean = sum(rewards) / len(rewards) if rewards else None
        if (
            any(is_wanted(rollout, case, wanted) for rollout in case.rollouts)
            and has_reward(mean, wanted)
            and (not outcomes or outcome(case) in outcomes)
        ):
            found.append(case.group.group_id)
    return found


# --- the shelf ----------------------------------------------------------------------------------


async def fill(path: Path, world: list[Case]) -> None:
    """Another run begins on a journal that holds nothing, as journals see to."""
    for run in RUNS:
        _remove(path)
        async with shelf_at(path, ROWS_ONLY, run=run) as (journal, shelf):
            for case in world:
                if case.run == run:
                    await accept(journal, case.group, created_at=case.created_at)
                    await end(journal, *case.rollouts)
                    await journal.forget([case.group.group_id])
            await shelf.read(lambda _: None)
    _remove(path)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def paged(db: sqlite3.Connection, wanted: RowFilter, limit: int) -> list[str]:
    """All pages of rollouts."""
    found: list[RolloutRow] = []
    after = None
    while page := queries.rollouts(db, wanted, after, limit):
        found += page
        after = Key.of_cursor(key_of(page[-1]).cursor())
    return [one.rollout_id for one in found]


def paged_groups(
    db: sqlite3.Connection, wanted: RowFilter, outcomes: Sequence[GroupOutcome], limit: int
) -> list[str]:
    found = []
    after = None
    while page := queries.groups(db, wanted, outcomes, after, limit):
        found += [one.group_id for one in page]
        after = Key.of_cursor(key_of_group(page[-1]).cursor())
    return found


@pytest.fixture(scope="module")
def make_directory(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    return lambda: tmp_path_factory.mktemp("shelf")


@pytest.mark.slow
@given(
    world=worlds(),
    asked=st.lists(st.tuples(filters, some(list(GroupOutcome)), st.integers(1, 4)), max_size=12),
)
@settings(max_examples=60)
def test_lists_are_what_the_model_says(
    make_directory: Callable[[], Path],
    world: list[Case],
    asked: list[tuple[RowFilter, list[GroupOutcome], int]],
) -> None:
    path = make_directory() / "j"

    async def check() -> None:
        await fill(path, world)
        async with shelf_at(path, ROWS_ONLY, run="third") as (_, shelf):
            for wanted, outcomes, limit in [(RowFilter(), [], 2), *asked]:
                ids = await shelf.read(partial(paged, wanted=wanted, limit=limit))
                assert ids == expected_rollouts(world, wanted)
                groups = await shelf.read(
                    partial(paged_groups, wanted=wanted, outcomes=outcomes, limit=limit)
                )
                assert groups == expected_groups(world, wanted, outcomes)

    asyncio.run(check())


async def test_lists_are_read_without_sorting_or_indexing_the_shelf(tmp_path: Path) -> None:
    async with shelf_at(tmp_path / "j", ROWS_ONLY) as (journal, shelf):
        await accept(journal, submitted())
        await end(journal, ended(submitted()))
        everything = RowFilter(
            run="r",
            agent=["a"],
            state=[RolloutState.FAILED],
            blame=[Blame.TASK],
            finish_reason=[FinishReason.LENGTH],
            policy_version=1,
            reward_min=0,
            reward_max=1,
            created_before=2,
            ended_after=1,
        )
        for wanted in (RowFilter(), everything, RowFilter(finish_reason=[FinishReason.LENGTH])):
            plans = await shelf.read(partial(explained, wanted=wanted))
            assert any("groups_by_age" in one for one in plans)
            assert not any("AUTOMATIC" in one or one.endswith("FOR ORDER BY") for one in plans)


def explained(db: sqlite3.Connection, wanted: RowFilter) -> list[str]:
    """How SQLite finds pages of both lists."""
    after, asked = Key(1.0, "a", 0), list[str]()
    db.set_trace_callback(asked.append)
    try:
        queries.rollouts(db, wanted, after, 10)
        queries.groups(db, wanted, [], after, 10)
    finally:
        db.set_trace_callback(None)
    lists = [one for one in asked if "ORDER BY g.created_at" in one]
    assert len(lists) == 2
    return [row[3] for one in lists for row in db.execute(f"EXPLAIN QUERY PLAN {one}").fetchall()]


@pytest.mark.parametrize(
    "cursor",
    ["", "x", "bm90IGpzb24=", "WzEsMl0=", "W251bGwsbnVsbCxudWxsXQ==", "é", "WzEsIlx1ZDgwMCIsMV0="],
)
def test_an_invalid_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(InvalidRequest, match="before: not a cursor of a page"):
        Key.of_cursor(cursor)
