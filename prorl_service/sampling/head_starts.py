"""Head starts: groups that have all failed begin again with turns of their task's solution.

The share of the turns adapts to how such groups end: it grows where they fail, shrinks where all of
their rollouts succeed, and shrinks slowly where they teach. Pure.
"""

from prorl_service.sampling.candidates import Candidate
from prorl_service.sampling.filter import GroupState
from prorl_service.schemas import Start

CHANGE = 0.05
"""Change of the share after a group that failed again, and after one that needed no help."""
INFORMATIVE_CHANGE = -0.01
"""Change after a group that taught something: the next may do with less."""
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
        teaches = state is GroupState.INFORMATIVE
        has_failed = max(candidate.scores.known(), default=self._lowest) <= self._lowest
        group = candidate.group
        if group.start is not None:
            if group.start.share is not None:
                self.share += INFORMATIVE_CHANGE if teaches else CHANGE if has_failed else -CHANGE
                self.share = min(1.0, max(LEAST, self.share))
            return None
        return Start(share=self.share) if has_failed and group.task.solution is not None else None
