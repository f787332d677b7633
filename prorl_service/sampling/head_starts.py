"""Head starts: groups that have all failed begin again with turns of their task's solution.

The share of the turns adapts to how such groups end: it shrinks as they succeed, and grows as they
fail, so that most of them can teach something. Pure.
"""

from prorl_service.sampling.candidates import Candidate
from prorl_service.sampling.filter import GroupState
from prorl_service.schemas import Start

LONGER, SHORTER = 0.1, 0.025
"""Changes of the share after a group that failed, and after another one: it comes to rest where one
in five fails."""
LEAST = 0.1


class HeadStarts:
    def __init__(self, *, is_on: bool, lowest: float) -> None:
        """`lowest`: score of a rollout that failed."""
        self.share = 1.0
        self._is_on = is_on
        self._lowest = lowest

    def note(self, candidate: Candidate, state: GroupState) -> Start | None:
        """Notes how a group has ended. Returns the turns with which it is to begin again; None if
        that was its end."""
        if not self._is_on or state not in (GroupState.INFORMATIVE, GroupState.UNINFORMATIVE):
            return None
        has_failed = max(candidate.scores.known(), default=self._lowest) <= self._lowest
        group = candidate.group
        if group.start is not None:
            if group.start.share is not None:
                change = LONGER if has_failed else -SHORTER
                self.share = min(1.0, max(LEAST, self.share + change))
            return None
        return Start(share=self.share) if has_failed and group.task.solution is not None else None
