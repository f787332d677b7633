"""In-flight groups, in memory, and log lines about their ends. Ended ones live in the journal."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from prorl_service.errors import LeaseExpired
from prorl_service.rollouts.journal import Journal
from prorl_service.rollouts.observers import Observers
from prorl_service.rollouts.record import Admitted, RolloutRecord
from prorl_service.schemas import Blame, ErrorInfo, Rollout, RolloutState
from prorl_service.schemas.numbers import mean_of
from prorl_service.utils.leases import Lease
from prorl_service.utils.tasks import TaskOwner

log = logging.getLogger(__name__)

MAX_WARNINGS = 10
WINDOW_S = 10.0

Cancel = Callable[[Sequence[RolloutRecord], ErrorInfo], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class InflightGroup:
    admitted: Admitted
    records: list[RolloutRecord]
    lease: Lease
    unended: int

    @property
    def group_id(self) -> str:
        return self.admitted.group.group_id

    @property
    def created_at(self) -> float:
        return self.records[0].created_at


class InflightGroups:
    def __init__(self, journal: Journal, background: TaskOwner, cancel: Cancel) -> None:
        """`cancel` is called with the rollouts of a group whose lease expires."""
        self._journal = journal
        self._background = background
        self._cancel = cancel
        self._groups: dict[str, InflightGroup] = {}
        self._rollouts: dict[str, RolloutRecord] = {}
        self.observers = Observers()
        self.ended = Counter[str]()
        """Number of ended rollouts in the journal, by state."""
        self.ends = Counter[RolloutState]()
        """Number of rollouts that have ended since this process began, by state."""
        self.failures = Counter[Blame]()
        """Number of failed rollouts since this process began, by blame."""
        self._reports = EndReports()

    def add(
        self,
        admitted: Admitted,
        created_at: float,
        attempts: Mapping[str, int] = MappingProxyType({}),
        saved_attempts: Mapping[str, int] = MappingProxyType({}),
        ended: Collection[str] = (),
    ) -> list[RolloutRecord]:
        """Adds a group. `attempts`: those of rollouts that were begun before; `saved_attempts`: of
        these, those in which the last turn was kept. Makes no records of
        `ended` rollouts."""
        group = admitted.group
        indices = (i for i in group.indices if group.rollout_id(i) not in ended)
        records = [RolloutRecord(admitted, i, self._journal, self.observers) for i in indices]
        lease = Lease(group.lease_s, lambda: self._expired(group.group_id))
        self._groups[group.group_id] = InflightGroup(admitted, records, lease, len(records))
        for record in records:
            record.created_at = created_at
            record.attempt = attempts.get(record.rollout_id, 0)
            record.restored_attempts = record.attempt
            if record.rollout_id in saved_attempts:
                record.has_saved_turns = True
                record.excused_attempts = min(record.attempt, saved_attempts[record.rollout_id])
            self._rollouts[record.rollout_id] = record
            record.watch(self._one_ended)
        self.observers.accepted(group)
        return records

    def peek(self, rollout_id: str) -> RolloutRecord | None:
        """Does what `get` does, without renewing the lease: a look is not a claim to the result."""
        record = self._rollouts.get(rollout_id)
        return None if record is None or record.is_terminal else record

    def groups(self) -> list[InflightGroup]:
        return list(self._groups.values())

    def group(self, group_id: str) -> InflightGroup | None:
        return self._groups.get(group_id)

    def get(self, rollout_id: str) -> RolloutRecord | None:
        """Returns the record and renews its lease; None if it is not in flight."""
        record = self._rollouts.get(rollout_id)
        if record is None or record.is_terminal:
            return None
        self.lease(record).renew()
        return record

    def lease(self, record: RolloutRecord) -> Lease:
        return self._groups[record.group.group_id].lease

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    def __iter__(self) -> Iterator[RolloutRecord]:
        return (record for record in self._rollouts.values() if not record.is_terminal)

    def group_ids(self) -> list[str]:
        return list(self._groups)

    def owners(self) -> set[str]:
        owners = (one.admitted.group.owner for one in self._groups.values())
        return {one for one in owners if one is not None}

    def rollout_ids(self, group_id: str) -> list[str]:
        return self._groups[group_id].admitted.group.rollout_ids()

    def unended(self, group_id: str) -> list[RolloutRecord]:
        """Returns the records of the group that have not ended; none if it is not in flight."""
        group = self._groups.get(group_id)
        return [one for one in group.records if one.outcome is None] if group else []

    def count_of(self, client: str | None) -> int:
        """Returns the number of unended rollouts that a client has submitted."""
        groups = self._groups.values()
        return sum(one.unended for one in groups if one.admitted.group.submitter == client)

    def count(self) -> int:
        return sum(group.unended for group in self._groups.values())

    def count_by_state(self) -> dict[RolloutState, int]:
        ended = {RolloutState(state): count for state, count in self.ended.items() if count}
        return dict(Counter(record.state for record in self) + Counter(ended))

    def _one_ended(self, record: RolloutRecord) -> None:
        self.ended[record.state] += 1
        self.ends[record.state] += 1
        if record.state is RolloutState.FAILED and record.outcome and record.outcome.error:
            self.failures[record.outcome.error.blame] += 1
        group = self._groups[record.group.group_id]
        group.unended -= 1
        if group.unended == 0:
            group.lease.end()
            del self._groups[record.group.group_id]
            for one in group.records:
                del self._rollouts[one.rollout_id]
        self._reports.rollout_ended(record.to_wire())
        if group.unended == 0:
            group_ended(group.records)

    def _expired(self, group_id: str) -> None:
        group = self._groups[group_id]
        reason = LeaseExpired(
            f"no client asked for group {group_id!r} for {group.admitted.group.lease_s:g} s",
            hint="wait for rollouts with an open stream, or give groups a longer lease_s",
        )
        reclaiming = self._cancel(group.records, reason.info())
        self._background.run_once(reclaiming, name=f"reclaim group {group_id}")

    def end_leases(self) -> None:
        for group in self._groups.values():
            group.lease.end()


# --- log lines ----------------------------------------------------------------------------------


class EndReports:
    """Log lines about failed rollouts, limited to `MAX_WARNINGS` in `WINDOW_S`, since an engine
    that is down fails rollouts by the hundred; the next warning says how many were left out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._window_began = clock()
        self._warned = self._left_out = 0

    def rollout_ended(self, rollout: Rollout) -> None:
        error = rollout.error
        if rollout.state is not RolloutState.FAILED or error is None or not self._may_warn():
            return
        stage = f" in {error.stage.value.upper()}" if error.stage else ""
        more = f" ({self._left_out} more since the last such line)" if self._left_out else ""
        self._left_out = 0
        text = "rollout %s failed%s, blame %s: %s%s"
        log.warning(text, rollout.rollout_id, stage, error.blame.value, error.message, more)

    def _may_warn(self) -> bool:
        now = self._clock()
        if now > self._window_began + WINDOW_S:
            self._window_began, self._warned = now, 0
        self._warned += 1
        if self._warned > MAX_WARNINGS:
            self._left_out += 1
        return self._warned <= MAX_WARNINGS


def group_ended(records: Sequence[RolloutRecord]) -> None:
    """Logs the end of a group. `records`: all its rollouts that have ended in this process."""
    if not log.isEnabledFor(logging.INFO):
        return
    rollouts = [record.to_wire() for record in records]
    counts = Counter(rollout.state.value for rollout in rollouts)
    parts = [", ".join(f"{count} {state}" for state, count in sorted(counts.items()))]
    if rewards := [one.reward for one in rollouts if one.reward is not None]:
        mean = mean_of(rewards)
        parts.append(f"reward {min(rewards):.2f} to {max(rewards):.2f} (mean {mean:.2f})")
    parts.append(f"{sum(record.turns for record in records) / len(records):.1f} turns")
    parts.append(f"{max(_seconds(rollout) for rollout in rollouts):.1f} s")
    log.info("group %s: %s", records[0].group.group_id, ", ".join(parts))


def _seconds(rollout: Rollout) -> float:
    timings = rollout.timings
    return timings.init_s + timings.run_s + timings.eval_s
