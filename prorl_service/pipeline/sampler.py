"""Dynamic sampling as a state machine: which candidate groups to begin, give, or give up.

Pure: no clock, no network, no store. The caller tells what has happened (candidates came, a draw
was opened, a rollout ended), asks what to do, and does it. Each candidate comes to one end: it is
given to one draw, or is found uninformative, or has failed. Until then it waits or is under way;
one whose tokens became too old, or that was cancelled as surplus, waits again and is begun as a
new attempt. Groups are given whole, in the order in which they ended; what ends without being given
is told once, by the draw that is open or else by the next.
"""

import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from statistics import fmean

from prorl_service.pipeline.informative import Outcome, outcome
from prorl_service.sampler_schemas import (
    Draw,
    DrawnGroup,
    DrawSpec,
    DrawState,
    DroppedGroup,
    SamplerSpec,
    SamplerStatus,
)
from prorl_service.schemas import ErrorInfo, Group, Rollout, RolloutState, WireModel

MIN_WAITING = 8
"""Candidates, so that a small service asks ahead as well."""


class GroupState(StrEnum):
    WAITING = "waiting"
    UNDER_WAY = "under_way"
    INFORMATIVE = "informative"
    GIVEN = "given"
    UNINFORMATIVE = "uninformative"
    FAILED = "failed"


ENDED = {
    Outcome.INFORMATIVE: GroupState.INFORMATIVE,
    Outcome.UNINFORMATIVE: GroupState.UNINFORMATIVE,
    Outcome.FAILED: GroupState.FAILED,
}


@dataclass(slots=True, eq=False)
class Candidate:
    group: Group
    """As the client gave it, under the name it gave it."""
    state: GroupState = GroupState.WAITING
    attempt: int = 0
    begun_in: str | None = None
    given_to: str | None = None
    scores: dict[int, float | None] = field(default_factory=dict)
    """Of the rollouts that have ended, by index; None of a failed one."""
    oldest_version: int | None = None
    """Of the tokens sampled in rollouts that have ended."""
    last_error: ErrorInfo | None = None
    """Of those rollouts, or why none will be run."""

    @property
    def name(self) -> str:
        return self.group.group_id

    def attempted(self, sampler_id: str) -> Group:
        """What the pipeline runs."""
        group_id = f"{sampler_id}:{self.name}:{self.attempt}"
        client = self.group.client or sampler_id
        return self.group.model_copy(update={"group_id": group_id, "client": client})

    def forget_attempt(self) -> None:
        self.state, self.begun_in, self.oldest_version = GroupState.WAITING, None, None
        self.scores.clear()
        self.last_error = None

    def dropped(self) -> DroppedGroup:
        known = [score for score in self.scores.values() if score is not None]
        has_failed = self.state is GroupState.FAILED
        return DroppedGroup(
            candidate=self.name,
            reason="failed" if has_failed else "uninformative",
            score_mean=fmean(known) if known else None,
            error=self.last_error if has_failed else None,
        )


class Tally(WireModel):
    """What has been counted so far; see `SamplerStatus`."""

    given: int = 0
    uninformative: int = 0
    failed: int = 0
    stale: int = 0
    decided_early: int = 0
    carried: int = 0
    scored: int = 0
    score_sum: float = 0.0
    last_failure: ErrorInfo | None = None

    def count(self, scores: Iterable[float | None]) -> None:
        known = [score for score in scores if score is not None]
        self.scored += len(known)
        self.score_sum += sum(known)

    @property
    def score_mean(self) -> float | None:
        return self.score_sum / self.scored if self.scored else None


class Sampler:
    """`changed` collects the candidates to be written down, `released` the groups of attempts that
    nobody needs any more, still running perhaps; whoever drives the sampler empties both."""

    def __init__(self, sampler_id: str, spec: SamplerSpec, *, slots: int) -> None:
        """`slots`: rollouts that can run at once; may change."""
        self.sampler_id = sampler_id
        self.spec = spec
        self.slots = slots
        self.draw: Draw | None = None
        self.is_last = False
        self.dropped: list[DroppedGroup] = []
        """What the next draw is to tell."""
        self.changed: dict[str, Candidate] = {}
        self.released: list[Group] = []
        self.tally = Tally()
        self._names: set[str] = set()
        """Of all candidates there ever were."""
        self._waiting: deque[Candidate] = deque()
        self._deferred: deque[Candidate] = deque()
        self._under_way: dict[str, Candidate] = {}
        self._informative: dict[str, Candidate] = {}
        """In the order in which they ended."""
        self._taught_nothing: Counter[str] = Counter()
        """How many of a task's groups in a row, by task."""
        self._since_deferred = 0

    # --- what happens ---------------------------------------------------------------------------

    def add(self, groups: Iterable[Group], *, is_last: bool = False) -> None:
        """Groups known already are left as they are."""
        self.is_last = self.is_last or is_last
        for group in groups:
            if group.group_id not in self._names:
                self._names.add(group.group_id)
                self._wait(Candidate(group))

    def restore(self, candidate: Candidate) -> None:
        """As it was written down; all in the order in which they came."""
        self._names.add(candidate.name)
        match candidate.state:
            case GroupState.WAITING:
                self._queue(candidate)
            case GroupState.UNDER_WAY:
                self._under_way[candidate.name] = candidate
            case GroupState.INFORMATIVE:
                self._informative[candidate.name] = candidate

    def restore_end(self, name: str, task_id: str, state: GroupState) -> None:
        """Of a candidate that was found informative or not, or failed."""
        self._names.add(name)
        self._remember(task_id, state)

    def open_draw(self, draw_id: str, spec: DrawSpec, *, version: int) -> None:
        """The one before must not be open."""
        self.draw = Draw(draw_id=draw_id, spec=spec, dropped=self.dropped)
        self.dropped = []
        self.settle(version)

    def rollout_ended(self, name: str, attempt: int, rollout: Rollout) -> None:
        """Of an attempt that was given up: nothing."""
        candidate = self._under_way.get(name)
        if candidate is None or candidate.attempt != attempt or rollout.index in candidate.scores:
            return
        score = _score(rollout, self.spec.filter.metric)
        candidate.scores[rollout.index] = score
        if rollout.oldest_policy_version is not None:
            versions = (candidate.oldest_version, rollout.oldest_policy_version)
            candidate.oldest_version = min(one for one in versions if one is not None)
        candidate.last_error = rollout.error or candidate.last_error
        self.tally.last_failure = rollout.error or self.tally.last_failure
        self.changed[name] = candidate
        found = outcome(candidate.scores.values(), candidate.group.n, self.spec.filter)
        if found is not Outcome.OPEN:
            self._decide(candidate, ENDED[found])

    def refused(self, name: str, attempt: int, error: ErrorInfo) -> None:
        """The service will never run it."""
        candidate = self._under_way.get(name)
        if candidate is not None and candidate.attempt == attempt:
            candidate.last_error = self.tally.last_failure = error
            self._decide(candidate, GroupState.FAILED)

    def settle(self, version: int, *, is_overdue: bool = False) -> None:
        """Give what there is to an open draw, and end it when its time has come."""
        draw = self.draw
        if draw is None or draw.state is not DrawState.OPEN:
            return
        self._begin_stale_anew(version)
        for candidate in list(islice(self._informative.values(), self._missing())):
            self._give(candidate, draw)
        if not self._missing():
            draw.state = DrawState.COMPLETE
        elif is_overdue:
            draw.state = DrawState.OVERDUE
        elif self._is_exhausted(draw):
            draw.state = DrawState.EXHAUSTED
        if draw.state is not DrawState.OPEN and self.spec.surplus == "cancel":
            for candidate in list(self._under_way.values()):
                self._begin_anew(candidate)

    # --- what to do -----------------------------------------------------------------------------

    def begin(self) -> Iterator[Candidate]:
        """Those to be begun now, each under way when it is yielded."""
        while self._has_room() and (candidate := self._next()) is not None:
            candidate.state = GroupState.UNDER_WAY
            candidate.attempt += 1
            candidate.begun_in = self.draw.draw_id if self.draw else None
            self._under_way[candidate.name] = candidate
            self.changed[candidate.name] = candidate
            yield candidate

    def under_way(self) -> list[Candidate]:
        return list(self._under_way.values())

    def begun(self) -> list[Candidate]:
        """And not at their end."""
        return [*self._under_way.values(), *self._informative.values()]

    def status(self, revision: int) -> SamplerStatus:
        return SamplerStatus(
            sampler_id=self.sampler_id,
            revision=revision,
            wanted=self._wanted(),
            waiting=len(self._waiting) + len(self._deferred),
            deferred=len(self._deferred),
            under_way=len(self._under_way),
            informative=len(self._informative),
            given=self.tally.given,
            uninformative=self.tally.uninformative,
            failed=self.tally.failed,
            stale=self.tally.stale,
            decided_early=self.tally.decided_early,
            carried=self.tally.carried,
            scored=self.tally.scored,
            score_mean=self.tally.score_mean,
            last_failure=self.tally.last_failure,
            draw=_snapshot(self.draw) if self.draw else None,
        )

    def _wanted(self) -> int:
        """Enough that no slot waits for the client; deferred ones count once they are many."""
        if self.is_last:
            return 0
        enough = max(MIN_WAITING, self.slots // 2)
        waiting = len(self._waiting)
        return max(0, min(enough - waiting, 2 * enough - waiting - len(self._deferred)))

    # --- waiting and under way ------------------------------------------------------------------

    def _wait(self, candidate: Candidate) -> None:
        self.changed[candidate.name] = candidate
        self._queue(candidate)

    def _queue(self, candidate: Candidate) -> None:
        """A new attempt goes before candidates that never began."""
        if self._is_deferred(candidate):
            self._deferred.append(candidate)
        elif candidate.attempt:
            self._waiting.appendleft(candidate)
        else:
            self._waiting.append(candidate)

    def _is_deferred(self, candidate: Candidate) -> bool:
        after = self.spec.defer_after
        return after is not None and self._taught_nothing[candidate.group.task.task_id] >= after

    def _next(self) -> Candidate | None:
        """What has become deferred while it waited moves behind the others now."""
        is_due = self._since_deferred + 1 >= self.spec.deferred_every
        while self._waiting and not (is_due and self._deferred):
            candidate = self._waiting.popleft()
            if not self._is_deferred(candidate):
                self._since_deferred += 1
                return candidate
            self._deferred.append(candidate)
        if not self._deferred:
            return None
        self._since_deferred = 0
        return self._deferred.popleft()

    def _has_room(self) -> bool:
        limits = [self.spec.groups_at_once]
        if self.draw is None or self.draw.state is not DrawState.OPEN:
            limits.append(self.spec.groups_ahead - len(self._informative))
        else:
            if self.spec.oversubscription is not None:
                limits.append(math.ceil(self.spec.oversubscription * self._missing()))
            if self.draw.spec.max_groups is not None:
                limits.append(self.draw.spec.max_groups - self.draw.finished)
        is_free = self._running() < self.slots or self.spec.groups_at_once is not None
        return is_free and all(len(self._under_way) < one for one in limits if one is not None)

    def _running(self) -> int:
        return sum(one.group.n - len(one.scores) for one in self._under_way.values())

    # --- ends -----------------------------------------------------------------------------------

    def _decide(self, candidate: Candidate, state: GroupState) -> None:
        candidate.state = state
        self.tally.count(candidate.scores.values())
        del self._under_way[candidate.name]
        self.changed[candidate.name] = candidate
        if state is GroupState.INFORMATIVE:
            self._informative[candidate.name] = candidate
        else:
            self.tally.decided_early += len(candidate.scores) < candidate.group.n
            self.tally.uninformative += state is GroupState.UNINFORMATIVE
            self.tally.failed += state is GroupState.FAILED
            self._drop(candidate)
        self._remember(candidate.group.task.task_id, state)
        if self.draw is not None and self.draw.state is DrawState.OPEN:
            self.draw.finished += 1

    def _drop(self, candidate: Candidate) -> None:
        self._release(candidate)
        draw = self.draw
        told_by: Draw | Sampler = draw if draw and draw.state is DrawState.OPEN else self
        told_by.dropped.append(candidate.dropped())

    def _remember(self, task_id: str, state: GroupState) -> None:
        if state is GroupState.UNINFORMATIVE:
            self._taught_nothing[task_id] += 1
        elif state is not GroupState.FAILED:
            del self._taught_nothing[task_id]

    def _missing(self) -> int:
        assert self.draw is not None
        return self.draw.spec.target - len(self.draw.groups)

    def _give(self, candidate: Candidate, draw: Draw) -> None:
        del self._informative[candidate.name]
        candidate.state, candidate.given_to = GroupState.GIVEN, draw.draw_id
        self.changed[candidate.name] = candidate
        self.tally.given += 1
        self.tally.carried += candidate.begun_in != draw.draw_id
        group = candidate.attempted(self.sampler_id)
        draw.groups.append(DrawnGroup(group_id=group.group_id, candidate=candidate.name, n=group.n))

    def _is_exhausted(self, draw: Draw) -> bool:
        if draw.spec.max_groups is not None and draw.finished >= draw.spec.max_groups:
            return True
        return self.is_last and not (self._waiting or self._deferred or self._under_way)

    def _begin_stale_anew(self, version: int) -> None:
        """`version`: the newest that the service knows of; the trainer may know of a newer one."""
        known = self.draw.spec.policy_version if self.draw else None
        oldest = max(version, known or 0) - self.spec.max_staleness

        def is_stale(candidate: Candidate) -> bool:
            return candidate.oldest_version is not None and candidate.oldest_version < oldest

        for candidate in filter(is_stale, [*self._informative.values(), *self.under_way()]):
            self.tally.stale += 1
            self._begin_anew(candidate)

    def _begin_anew(self, candidate: Candidate) -> None:
        self._informative.pop(candidate.name, None)
        self._under_way.pop(candidate.name, None)
        self._release(candidate)
        candidate.forget_attempt()
        self._wait(candidate)

    def _release(self, candidate: Candidate) -> None:
        self.released.append(candidate.attempted(self.sampler_id))


def _snapshot(draw: Draw) -> Draw:
    """What is in its lists never changes."""
    return draw.model_copy(update={"groups": [*draw.groups], "dropped": [*draw.dropped]})


def _score(rollout: Rollout, metric: str) -> float | None:
    if rollout.state is not RolloutState.DONE:
        return None
    return rollout.reward if metric == "reward" else rollout.reward_components.get(metric)
