"""Rows of lists, made from rollouts and groups wherever they are, and the lists' order. Pure.

Lists are ordered by creation, newest first, and siblings by index. That order is fixed when a group
is accepted, so a page starts after a stable place, whatever ends or arrives in the meantime.
"""

import base64
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import orjson

from prorl_service.errors import InvalidRequest
from prorl_service.schemas import Blame, Figures, Rollout, RolloutState, Stage
from prorl_service.schemas.numbers import mean_of
from prorl_service.schemas.views import GroupOutcome, GroupRow, RolloutRow, RolloutSort, RowFilter

BEFORE_ALL = -1
"""Index that sorts before those of all siblings."""


@dataclass(frozen=True, slots=True)
class Key:
    """A place in the order of rollouts, or, with `BEFORE_ALL`, of groups."""

    created_at: float
    group_id: str
    index: int = BEFORE_ALL

    def comes_before(self, created_at: float, group_id: str) -> bool:
        """Returns whether all rollouts of the group follow this place."""
        return (created_at, group_id) < (self.created_at, self.group_id)

    def is_within(self, created_at: float, group_id: str) -> bool:
        return (created_at, group_id) == (self.created_at, self.group_id)

    def cursor(self) -> str:
        raw = orjson.dumps([self.created_at, self.group_id, self.index])
        return base64.urlsafe_b64encode(raw).decode()

    @classmethod
    def of_cursor(cls, cursor: str) -> "Key":
        """Raises `InvalidRequest`."""
        try:
            created_at, group_id, index = orjson.loads(base64.urlsafe_b64decode(cursor))
            key = cls(float(created_at), str(group_id), int(index))
            group_id.encode()
        except (ValueError, TypeError, AttributeError) as error:
            hint = "pass `next` of the previous page unchanged"
            raise InvalidRequest.of_field("before", "not a cursor of a page", hint=hint) from error
        return key


def key_of(row: RolloutRow) -> Key:
    return Key(row.created_at, row.group_id, row.index)


def key_of_group(row: GroupRow) -> Key:
    return Key(row.created_at, row.group_id)


def sorted_by(rows: Iterable[RolloutRow], sort: RolloutSort) -> list[RolloutRow]:
    """Returns the rows that have the figure, in that order; equal ones as in the default order."""
    siblings = sorted(rows, key=lambda row: row.index)
    found = sorted(siblings, key=lambda row: (row.created_at, row.group_id), reverse=True)
    if sort is RolloutSort.NEWEST:
        return found
    column, is_descending = FIGURES[sort]
    known = [(value, row) for row in found if (value := figure_of(row, column)) is not None]
    known.sort(key=lambda one: one[0], reverse=is_descending)
    return [row for _, row in known]


def figure_of(row: RolloutRow, column: str) -> float | None:
    if column != "run_s":
        return getattr(row, column)  # type: ignore[no-any-return]
    now = row.activity
    is_running = now is not None and now.stage is Stage.RUN and not now.is_queued
    return row.timings.run_s + (now.took_s if now is not None and is_running else 0.0)


FIGURES = {
    RolloutSort.OLDEST: ("created_at", False),
    RolloutSort.LONGEST: ("run_s", True),
    RolloutSort.SHORTEST: ("run_s", False),
    RolloutSort.BEST: ("reward", True),
    RolloutSort.WORST: ("reward", False),
    RolloutSort.MOST_TURNS: ("turns", True),
    RolloutSort.FEWEST_TURNS: ("turns", False),
    RolloutSort.MOST_TOKENS: ("sampled_tokens", True),
    RolloutSort.FEWEST_TOKENS: ("sampled_tokens", False),
}
"""What a list is sorted by, and whether the largest comes first."""


# --- rollouts -----------------------------------------------------------------------------------


_OF_ROLLOUT = Rollout.model_fields.keys() & RolloutRow.model_fields.keys()


def row_of(rollout: Rollout, figures: Figures | None, **others: Any) -> RolloutRow:
    """Makes a row. `figures` is None if it is not known here what was sampled. `others` are fields
    of the row that are in neither."""
    known = {name: getattr(rollout, name) for name in _OF_ROLLOUT}
    return RolloutRow(**known, **dict(figures or ()), **others)


def blame_of(row: RolloutRow) -> Blame | None:
    """Returns None for a cancelled rollout: its error, if any, says why it was cancelled."""
    is_failed = row.state is RolloutState.FAILED
    return row.error.blame if is_failed and row.error is not None else None


def meets(row: RolloutRow, wanted: RowFilter, *, reward: float | None) -> bool:
    """Returns whether the row matches. `reward` is the rollout's; in lists of groups, the mean."""
    return (
        wanted.text is None  # only the shelf knows texts
        and wanted.run in (None, row.run)
        and fits(row.task_id, wanted.task_id)
        and fits(row.group_id, wanted.group_id)
        and wanted.policy_version in (None, row.policy_version)
        and wanted.client in (None, row.client)
        and _is_within(row, wanted)
        and _is_any(row.agent, wanted.agent)
        and _is_any(row.state, wanted.state)
        and _is_any(blame_of(row), wanted.blame)
        and _is_any(row.finish_reason, wanted.finish_reason)
        and _is_in_range(reward, wanted)
    )


def fits(value: str, pattern: str | None) -> bool:
    """Returns whether the value fits a pattern, in which `*` stands for any text."""
    return pattern is None or value == pattern or fnmatchcase(value, globbed(pattern))


def globbed(pattern: str) -> str:
    """Returns the pattern for `GLOB` and `fnmatch`, which know more than `*`."""
    return re.sub(r"[\[?]", r"[\g<0>]", pattern)


def _is_any(value: object, wanted: Sequence[object]) -> bool:
    return not wanted or value in wanted


def _is_within(row: RolloutRow, wanted: RowFilter) -> bool:
    if wanted.created_before is not None and row.created_at > wanted.created_before:
        return False
    return wanted.ended_after is None or row.ended_at is None or row.ended_at >= wanted.ended_after


def _is_in_range(reward: float | None, wanted: RowFilter) -> bool:
    if wanted.reward_min is None and wanted.reward_max is None:
        return True
    if reward is None:
        return False
    least = -math.inf if wanted.reward_min is None else wanted.reward_min
    greatest = math.inf if wanted.reward_max is None else wanted.reward_max
    return least <= reward <= greatest


# --- groups -------------------------------------------------------------------------------------


def outcome_of(n: int, ended: int, least: float | None, greatest: float | None) -> GroupOutcome:
    """Classifies a group by its `least` and `greatest` reward, None if it has no rewards."""
    if ended < n:
        return GroupOutcome.OPEN
    if least is None or greatest is None:
        return GroupOutcome.UNSCORED
    if least < greatest:
        return GroupOutcome.INFORMATIVE
    equal = {0.0: GroupOutcome.ALL_ZERO, 1.0: GroupOutcome.ALL_ONE}
    return equal.get(least, GroupOutcome.ALL_EQUAL)


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One rollout's part in its group's row."""

    index: int
    state: RolloutState
    reward: float | None
    blame: Blame | None
    policy_version: int | None
    turns: int
    sampled_tokens: int
    ended_at: float | None
    """Time of its end; None while it is in flight."""
    has_content: bool

    @classmethod
    def of(cls, row: RolloutRow) -> "GroupMember":
        return cls(
            row.index,
            row.state,
            row.reward,
            blame_of(row),
            row.policy_version,
            row.turns or 0,
            row.sampled_tokens or 0,
            row.ended_at,
            row.has_content,
        )


def group_row(members: Sequence[GroupMember], *, n: int, **others: Any) -> GroupRow:
    """Makes a group's row. `members` may lack some of its `n` rollouts. `others` are fields of the
    row that are not from them."""
    states: list[RolloutState | None] = [None] * n
    rewards: list[float | None] = [None] * n
    for one in members:
        states[one.index], rewards[one.index] = one.state, one.reward
    ended = [one for one in members if one.ended_at is not None]
    known = [reward for reward in rewards if reward is not None]
    ends = [one.ended_at for one in ended if one.ended_at is not None]
    return GroupRow(
        n=n,
        states=states,
        rewards=rewards,
        mean_reward=mean_of(known),
        outcome=outcome_of(n, len(ended), min(known, default=None), max(known, default=None)),
        policy_versions=sorted({one.policy_version for one in ended} - {None}),
        blames=dict(Counter(one.blame for one in ended if one.blame is not None)),
        turns=sum(one.turns for one in ended),
        sampled_tokens=sum(one.sampled_tokens for one in ended),
        ended_at=max(ends) if len(ended) == n else None,
        has_content=any(one.has_content for one in members),
        **others,
    )
