"""The groups the service knows, in memory: those under way, and those that ended last.

A group is forgotten as a whole, the one that ended first before others, when ended rollouts take
more memory than wanted. Does not survive the process.
"""

from collections import Counter

from prorl_service.errors import Conflict, NotFound
from prorl_service.pipeline.record import Admitted, RolloutRecord
from prorl_service.schemas import Group, RolloutState

RECORD_BYTES = 2048
"""What a rollout costs beside its answer, roughly."""


class RolloutStore:
    def __init__(self, *, keep_bytes: int) -> None:
        self._keep_bytes = keep_bytes
        self._groups: dict[str, list[RolloutRecord]] = {}
        self._rollouts: dict[str, RolloutRecord] = {}
        self._unended: Counter[str] = Counter()
        self._ended: dict[str, int] = {}
        """Bytes of the ended groups, in the order in which they ended."""

    def known(self, group: Group) -> list[RolloutRecord] | None:
        """The rollouts of an earlier, equal submission. Raises `Conflict` for an unequal one."""
        records = self._groups.get(group.group_id)
        if records is not None and records[0].group != group:
            raise Conflict(
                f"group {group.group_id!r} was submitted before with other content",
                hint="give every new group an id of its own",
            )
        return records

    def add(self, admitted: Admitted) -> list[RolloutRecord]:
        group_id = admitted.group.group_id
        records = [RolloutRecord(admitted, index) for index in range(admitted.group.n)]
        self._groups[group_id] = records
        self._rollouts.update({record.rollout_id: record for record in records})
        self._unended[group_id] = len(records)
        for record in records:
            record.watch(self._one_ended)
        return records

    def get(self, rollout_id: str) -> RolloutRecord:
        """Raises `NotFound`."""
        try:
            return self._rollouts[rollout_id]
        except KeyError:
            raise NotFound(
                f"there is no rollout {rollout_id!r}",
                hint="it was never submitted, or it ended long ago and was forgotten",
            ) from None

    def unfinished(self) -> list[RolloutRecord]:
        groups = [self._groups[group_id] for group_id in self._unended]
        return [record for group in groups for record in group if not record.is_terminal]

    def count_unfinished(self) -> int:
        return self._unended.total()

    def count_by_state(self) -> dict[RolloutState, int]:
        return dict(Counter(record.state for record in self._rollouts.values()))

    def _one_ended(self, record: RolloutRecord) -> None:
        group_id = record.group.group_id
        self._unended[group_id] -= 1
        if self._unended[group_id] == 0:
            del self._unended[group_id]
            self._ended[group_id] = sum(
                len(one.packed or b"") + RECORD_BYTES for one in self._groups[group_id]
            )
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        """The group that has just ended stays, however large."""
        excess = sum(self._ended.values()) - self._keep_bytes
        for group_id, size in list(self._ended.items())[:-1]:
            if excess <= 0:
                return
            excess -= size
            del self._ended[group_id]
            for record in self._groups.pop(group_id):
                del self._rollouts[record.rollout_id]
