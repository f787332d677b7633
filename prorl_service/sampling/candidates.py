"""A sampler's candidates, and the order in which the waiting ones are begun. Pure."""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from prorl_service.sampling.filter import GroupState, Scores
from prorl_service.schemas import ErrorInfo, Group, WireModel
from prorl_service.schemas.numbers import mean_of
from prorl_service.schemas.sampling import DifficultyCounts, DroppedGroup, SamplerSpec

REASONS: dict[GroupState, Literal["uninformative", "failed", "passed_over"]] = {
    GroupState.UNINFORMATIVE: "uninformative",
    GroupState.FAILED: "failed",
    GroupState.PASSED_OVER: "passed_over",
}
"""Reasons for which candidates are dropped."""


@dataclass(slots=True, eq=False, repr=False)
class Candidate:
    group: Group
    """The client's group, under the client's name for it."""
    state: GroupState = GroupState.WAITING
    attempt: int = 0
    begun_in: str | None = None
    given_to: str | None = None
    scores: Scores = field(default_factory=Scores)
    """Scores of the rollouts that have ended."""
    oldest_version: int | None = None
    newest_version: int | None = None
    """Oldest and newest policy version of tokens in rollouts that have ended."""
    last_error: ErrorInfo | None = None
    """Last error among those rollouts, or the reason why none will run."""

    def __repr__(self) -> str:
        return f"<candidate {self.name}, {self.state.value}>"

    @property
    def name(self) -> str:
        return self.group.group_id

    def attempted(self, prefix: str, client: str) -> Group:
        """Returns the group that the pipeline runs, for `client` unless the group names its own."""
        update = {
            "group_id": f"{prefix}{self.name}:{self.attempt}",
            "client": self.group.client or client,
        }
        return self.group.model_copy(update=update)

    def note_versions(self, *versions: int | None) -> None:
        """Notes the policy versions of sampled tokens."""
        all_known = [
            one for one in (self.oldest_version, self.newest_version, *versions) if one is not None
        ]
        self.oldest_version = min(all_known, default=None)
        self.newest_version = max(all_known, default=None)

    def forget_attempt(self) -> None:
        self.state, self.begun_in = GroupState.WAITING, None
        self.oldest_version = self.newest_version = None
        self.scores = Scores()
        self.last_error = None

    def dropped(self) -> DroppedGroup:
        known = self.scores.known()
        has_failed = self.state is GroupState.FAILED
        return DroppedGroup(
            candidate=self.name,
            reason=REASONS[self.state],
            score_mean=mean_of(known),
            error=self.last_error if has_failed else None,
        )

    def counts(self) -> DifficultyCounts | None:
        """Counts this one candidate, at its end; None if its task names no difficulty."""
        difficulty = self.group.task.difficulty
        if difficulty is None:
            return None
        known = self.scores.known()
        return DifficultyCounts(
            difficulty=difficulty,
            informative=self.state is GroupState.INFORMATIVE,
            uninformative=self.state is GroupState.UNINFORMATIVE,
            failed=self.state is GroupState.FAILED,
            passed_over=self.state is GroupState.PASSED_OVER,
            scored=len(known),
            score_mean=mean_of(known),
        )


class Tally(WireModel):
    """Counts so far; see `SamplerStatus`."""

    given: int = 0
    uninformative: int = 0
    failed: int = 0
    stale: int = 0
    decided_early: int = 0
    carried: int = 0
    passed_over: int = 0
    head_started: int = 0
    scored: int = 0
    score_sum: float = 0.0
    last_failure: ErrorInfo | None = None

    def count(self, known: Iterable[float]) -> None:
        scores = list(known)
        self.scored += len(scores)
        self.score_sum += sum(scores)

    @property
    def score_mean(self) -> float | None:
        return self.score_sum / self.scored if self.scored else None


class WaitingCandidates:
    """Candidates that are not begun. Those of tasks whose last groups taught nothing are deferred:
    they wait behind the others, and are tried again now and then."""

    def __init__(self, spec: SamplerSpec) -> None:
        self._spec = spec
        self._first: deque[Candidate] = deque()
        self._deferred: deque[Candidate] = deque()
        self._taught_nothing: Counter[str] = Counter()
        """Number of consecutive last groups that taught nothing, by task."""
        self._since_deferred = 0

    def __len__(self) -> int:
        return len(self._first) + len(self._deferred)

    @property
    def deferred(self) -> int:
        return len(self._deferred)

    def put(self, candidate: Candidate) -> None:
        """Adds a candidate; a new attempt goes before candidates that never began."""
        if self._is_deferred(candidate):
            self._deferred.append(candidate)
        elif candidate.attempt:
            self._first.appendleft(candidate)
        else:
            self._first.append(candidate)

    def _is_deferred(self, candidate: Candidate) -> bool:
        after = self._spec.defer_after
        return after is not None and self._taught_nothing[candidate.group.task.task_id] >= after

    def next(self) -> Candidate | None:
        """Returns the next candidate, if any. Moves those deferred meanwhile behind the others."""
        is_due = self._since_deferred + 1 >= self._spec.deferred_every
        while self._first and not (is_due and self._deferred):
            candidate = self._first.popleft()
            if not self._is_deferred(candidate):
                self._since_deferred += 1
                return candidate
            self._deferred.append(candidate)
        if not self._deferred:
            return None
        self._since_deferred = 0
        return self._deferred.popleft()

    def wanted(self, enough: int) -> int:
        """Returns how many more are wanted; deferred candidates count once they are many."""
        first = len(self._first)
        return max(0, min(enough - first, 2 * enough - first - len(self._deferred)))

    def remember(self, task_id: str, state: GroupState) -> None:
        """Notes how a group of the task ended."""
        if state is GroupState.UNINFORMATIVE:
            self._taught_nothing[task_id] += 1
        elif state not in (GroupState.FAILED, GroupState.PASSED_OVER):
            del self._taught_nothing[task_id]
