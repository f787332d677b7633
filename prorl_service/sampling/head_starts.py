"""Head starts: groups that have all failed begin again with turns of what solves their task: its
`solution`, or else the best earlier rollout of the task.

The share of the turns adapts to how such groups end: it grows where they fail, shrinks where all of
their rollouts succeed, and shrinks slowly where they teach. Pure: it says which rollouts are to be
read. A restart of the service forgets them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from prorl_service.sampling.candidates import Candidate
from prorl_service.sampling.filter import GroupState
from prorl_service.schemas import Start, Task

CHANGE = 0.05
"""Change of the share after a group that failed again, and after one that needed no help."""
INFORMATIVE_CHANGE = -0.01
"""Change after a group that taught something: the next may do with less."""
LEAST = 0.1
MOST_TASKS = 1024
"""Tasks whose best rollout is kept; the task that succeeded first is forgotten first."""


@dataclass(slots=True)
class Success:
    """The best rollout of a task so far."""

    rollout_id: str
    score: float
    replies: Sequence[str] = ()
    """Texts of its turns; none until it was read."""


class HeadStarts:
    def __init__(self, *, is_on: bool, lowest: float) -> None:
        """`lowest`: score of a rollout that failed."""
        self.share = 1.0
        self._is_on = is_on
        self._lowest = lowest
        self._best: dict[str, Success] = {}
        """Keyed by task."""
        self.unread: list[Success] = []
        """Those whose replies are wanted."""

    def note_score(self, task: Task, rollout_id: str, score: float | None) -> None:
        best = self._best.get(task.task_id)
        least = self._lowest if best is None else best.score
        if not self._is_on or task.solution is not None or score is None or score <= least:
            return
        self._best[task.task_id] = found = Success(rollout_id, score)
        self.unread.append(found)
        if len(self._best) > MOST_TASKS:
            del self._best[next(iter(self._best))]

    def note(self, candidate: Candidate, state: GroupState) -> Start | None:
        """Notes how a group has ended. Returns the turns with which it is to begin again; None if
        that was its end."""
        if not self._is_on or state not in (GroupState.INFORMATIVE, GroupState.UNINFORMATIVE):
            return None
        teaches = state is GroupState.INFORMATIVE
        has_failed = max(candidate.scores.known(), default=self._lowest) <= self._lowest
        group = candidate.group
        if group.start is not None:
            if group.start.share is not None:
                self.share += INFORMATIVE_CHANGE if teaches else CHANGE if has_failed else -CHANGE
                self.share = min(1.0, max(LEAST, self.share))
            return None
        if not has_failed:
            return None
        if group.task.solution is not None:
            return Start(share=self.share)
        best = self._best.get(group.task.task_id)
        if best is None or len(best.replies) < 2:
            return None
        return Start(share=self.share, replies=[*best.replies])
