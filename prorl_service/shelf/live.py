"""Rows of groups in flight: from memory, in the event loop, made only for listed ones.

They include rollouts that ended while siblings run, since a shelf that is off has none.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

from prorl_service.rollouts.executor import RolloutExecutor
from prorl_service.rollouts.inflight import InflightGroup
from prorl_service.rollouts.record import RolloutRecord
from prorl_service.schemas import Figures
from prorl_service.schemas.numbers import mean_of
from prorl_service.schemas.views import GroupOutcome, GroupRow, RolloutRow, RowFilter
from prorl_service.shelf.rows import GroupMember, Key, fits, group_row, meets, row_of

SLICE = 2048
"""Rollouts examined before the event loop gets a turn."""


class LiveRows:
    def __init__(self, executor: RolloutExecutor, run: str) -> None:
        self._executor = executor
        self._run = run

    async def rollouts(self, wanted: RowFilter, after: Key | None, limit: int) -> list[RolloutRow]:
        """Returns rows after `after`, in the lists' order."""
        rows: list[RolloutRow] = []
        async for group in self._groups(wanted, after, is_within=True):
            begins_after = after.index if after is not None and _is_at(after, group) else -1
            for record in group.records:
                if record.index > begins_after and self._may_meet(record, wanted):
                    row = self.row(record)
                    if meets(row, wanted, reward=row.reward):
                        rows.append(row)
            if len(rows) >= limit:
                break
        return rows[:limit]

    async def groups(
        self, wanted: RowFilter, outcomes: Sequence[GroupOutcome], after: Key | None, limit: int
    ) -> list[GroupRow]:
        """Returns rows after `after`, in the lists' order, as far as this process knows them."""
        rows: list[GroupRow] = []
        async for group in self._groups(wanted, after, is_within=False):
            if outcomes and GroupOutcome.OPEN not in outcomes:
                break
            if not any(self._may_meet(record, wanted) for record in group.records):
                continue
            row = self.group_row(group, wanted)
            if row is not None:
                rows.append(row)
            if len(rows) >= limit:
                break
        return rows

    def group_row(self, group: InflightGroup, wanted: RowFilter) -> GroupRow | None:
        """Returns None if no rollout of the group is wanted."""
        rollouts = [self.row(record) for record in group.records]
        mean = mean_of(row.reward for row in rollouts if row.reward is not None)
        if not any(meets(row, wanted, reward=mean) for row in rollouts):
            return None
        submitted = group.admitted.group
        return group_row(
            [GroupMember.of(row) for row in rollouts],
            n=submitted.n,
            group_id=submitted.group_id,
            run=self._run,
            task_id=submitted.task.task_id,
            agent=submitted.task.agent,
            client=submitted.submitter,
            created_at=group.created_at,
        )

    def filled(self, row: GroupRow) -> GroupRow:
        """Returns the row with the states of rollouts that are still in flight here."""
        group = self._executor.inflight.group(row.group_id)
        if row.run != self._run or group is None or group.created_at != row.created_at:
            return row
        states = list(row.states)
        for record in group.records:
            states[record.index] = states[record.index] or record.state
        return row.model_copy(update={"states": states, "has_content": True})

    def row(self, record: RolloutRecord) -> RolloutRow:
        """Returns the rollout's current row."""
        if record.is_terminal and record.outcome is not None:
            return row_of(
                record.outcome,
                record.outcome.figures,
                run=self._run,
                client=record.group.submitter,
                has_content=True,
                ended_at=record.ended_at,
                policy_version=record.outcome.newest_policy_version,
            )
        progress = self._executor.progress(record)
        versions = progress.ledger.versions if progress is not None else set()
        rollout = record.to_wire()
        rollout.oldest_policy_version = min(versions, default=None)
        rollout.newest_policy_version = max(versions, default=None)
        figures = progress.figures() if progress is not None else None
        if figures is None and self._executor.elsewhere(record) is None:
            figures = Figures()
        return row_of(
            rollout,
            figures,
            run=self._run,
            client=record.group.submitter,
            has_content=True,
            activity=self._executor.activity(record),
        )

    async def _groups(
        self, wanted: RowFilter, after: Key | None, *, is_within: bool
    ) -> AsyncIterator[InflightGroup]:
        """Yields groups in flight that may be listed, newest first. `is_within` includes the group
        that `after` lies in."""
        if wanted.run not in (None, self._run):
            return
        looked_at = 0
        groups = self._executor.inflight.groups()
        for group in sorted(groups, key=lambda one: (one.created_at, one.group_id), reverse=True):
            looked_at += len(group.records)
            if looked_at > SLICE:
                looked_at = 0
                await asyncio.sleep(0)
            comes = after is None or after.comes_before(group.created_at, group.group_id)
            if (comes or (is_within and after is not None and _is_at(after, group))) and _may_have(
                group, wanted
            ):
                yield group

    def _may_meet(self, record: RolloutRecord, wanted: RowFilter) -> bool:
        """Rules out rollouts cheaply, before a row is made."""
        if wanted.state and record.state not in wanted.state:
            return False
        is_of_ended = (
            wanted.blame
            or wanted.finish_reason
            or wanted.policy_version is not None
            or wanted.reward_min is not None
            or wanted.reward_max is not None
        )
        return record.is_terminal or not is_of_ended


def _is_at(key: Key, group: InflightGroup) -> bool:
    return key.is_within(group.created_at, group.group_id)


def _may_have(group: InflightGroup, wanted: RowFilter) -> bool:
    task = group.admitted.group.task
    return (
        fits(task.task_id, wanted.task_id)
        and fits(group.group_id, wanted.group_id)
        and (not wanted.agent or task.agent in wanted.agent)
    )
