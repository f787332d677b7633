"""The groups the service knows, in memory: those under way, and those that ended last.

A group is forgotten as a whole, oldest first, when it has ended and more rollouts are kept than
wanted. Does not survive the process.
"""

from collections import Counter

from prorl_service.errors import Conflict, NotFound
from prorl_service.pipeline.record import Admitted, RolloutRecord
from prorl_service.schemas import Group, RolloutState


class RolloutStore:
    def __init__(self, *, keep_rollouts: int) -> None:
        self._keep_rollouts = keep_rollouts
        self._groups: dict[str, list[RolloutRecord]] = {}
        self._rollouts: dict[str, RolloutRecord] = {}

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
        records = [RolloutRecord(admitted, index) for index in range(admitted.group.n)]
        self._groups[admitted.group.group_id] = records
        self._rollouts.update({record.rollout_id: record for record in records})
        self._forget_oldest()
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
        return [record for record in self._rollouts.values() if not record.is_terminal]

    def count_by_state(self) -> dict[RolloutState, int]:
        return dict(Counter(record.state for record in self._rollouts.values()))

    def _forget_oldest(self) -> None:
        for group_id, records in list(self._groups.items()):
            if len(self._rollouts) <= self._keep_rollouts:
                return
            if all(record.is_terminal for record in records):
                del self._groups[group_id]
                for record in records:
                    del self._rollouts[record.rollout_id]
