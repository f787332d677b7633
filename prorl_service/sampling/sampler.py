"""Dynamic sampling as a state machine: which candidate groups to begin, give, or abandon.

Pure: no clock, no network, no store. The caller reports what has happened (candidates came, a draw
was opened, a rollout ended), asks what to do, and does it. Each candidate comes to one end: it is
given to one draw, is found uninformative, has failed, or is passed over by the curriculum. Until
then it waits or is in flight; one whose tokens became stale, that was cancelled as surplus, or that
gets a head start, waits again and is begun as a new attempt. Groups are given whole, in the order
in which they ended, when their draw ends: until then the draw holds them, and groups that became
stale meanwhile are replaced. A candidate that ends without being given is reported once, by the
open draw or else by the next.
"""

import math
from collections.abc import Iterable, Iterator
from itertools import islice

from prorl_service.errors import EvaluatorError, MetricMissing, SamplingFailed
from prorl_service.sampling.candidates import Candidate, Tally, WaitingCandidates
from prorl_service.sampling.curriculum import LevelChooser
from prorl_service.sampling.filter import GroupState, outcome
from prorl_service.sampling.head_starts import HeadStarts
from prorl_service.schemas import ErrorInfo, Group, Rollout, RolloutState, Start
from prorl_service.schemas.numbers import MAX_SCORE, is_score, shown
from prorl_service.schemas.sampling import (
    DifficultyCounts,
    Draw,
    DrawnGroup,
    DrawSpec,
    DrawState,
    DroppedGroup,
    SamplerSpec,
    SamplerStatus,
    summed,
)

MIN_WAITING = 8
"""Fewest waiting candidates to aim for, so that a small service asks ahead as well."""


class Sampler:
    """`changed` collects the candidates to be written down, `released` the groups of attempts that
    are not needed any more, but may still run; the caller empties both."""

    def __init__(
        self,
        sampler_id: str,
        spec: SamplerSpec,
        *,
        slots: int,
        incarnation: str = "",
    ) -> None:
        """`slots`: rollouts that can run in parallel; may change. `incarnation` distinguishes its
        groups from those of earlier samplers of that name."""
        self.sampler_id = sampler_id
        self.incarnation = incarnation
        self.spec = spec
        self.slots = slots
        self.draw: Draw | None = None
        self.is_last = False
        self.dropped: list[DroppedGroup] = []
        """Dropped groups that the next draw is to report."""
        self.difficulties: list[DifficultyCounts] = []
        """Counts that the next draw is to report."""
        self.changed: dict[str, Candidate] = {}
        self.released: list[Group] = []
        self.tally = Tally()
        self.refusal: ErrorInfo | None = None
        """Reason why no group is begun: the first rollout that was done lacks the filter's metric.
        None again once a rollout has it."""
        self._has_metric = False
        """True once a rollout had the metric."""
        self._names: set[str] = set()
        """Names of all candidates there ever were."""
        self._waiting = WaitingCandidates(spec)
        self.levels = LevelChooser(spec.curriculum)
        self.head_starts = HeadStarts(is_on=spec.head_start, lowest=spec.filter.lowest or 0.0)
        self._under_way: dict[str, Candidate] = {}
        self._informative: dict[str, Candidate] = {}
        """Informative candidates in the order in which they ended."""
        self._held: dict[str, Candidate] = {}
        """Informative candidates to be given to the open draw, unless they become stale before its
        end."""

    # --- what happens ---------------------------------------------------------------------------

    def add(self, groups: Iterable[Group], *, is_last: bool = False) -> None:
        """Adds candidates; leaves known ones as they are."""
        self.is_last = self.is_last or is_last
        for group in groups:
            if group.group_id not in self._names:
                self._names.add(group.group_id)
                self._wait(Candidate(group))

    def restore(self, candidate: Candidate) -> None:
        """Restores a candidate from the journal. Call it in the order in which they came, once
        `draw` is restored."""
        self._names.add(candidate.name)
        match candidate.state:
            case GroupState.WAITING:
                self._waiting.put(candidate)
            case GroupState.UNDER_WAY:
                self._under_way[candidate.name] = candidate
            case GroupState.INFORMATIVE:
                draw = self._open_draw()
                is_held = draw and any(one.candidate == candidate.name for one in draw.groups)
                (self._held if is_held else self._informative)[candidate.name] = candidate

    def restore_end(self, name: str, task_id: str, state: GroupState) -> None:
        """Restores a candidate that was given, was uninformative, or failed."""
        self._names.add(name)
        self._waiting.remember(task_id, state)

    def open_draw(
        self, draw_id: str, spec: DrawSpec, *, version: int, pushed: int | None = None
    ) -> None:
        """Opens a draw; the one before must have ended."""
        self.draw = Draw(
            draw_id=draw_id, spec=spec, dropped=self.dropped, difficulties=self.difficulties
        )
        self.dropped, self.difficulties = [], []
        self.settle(version, pushed)

    def rollout_ended(self, name: str, attempt: int, rollout: Rollout) -> None:
        """Ignores rollouts of an abandoned attempt."""
        candidate = self._under_way.get(name)
        if candidate is None or candidate.attempt != attempt or rollout.index in candidate.scores:
            return
        score, problem = _score(rollout, self.spec.filter.metric)
        candidate.scores.add(rollout.index, score)
        candidate.note_versions(rollout.oldest_policy_version, rollout.newest_policy_version)
        self.head_starts.note_score(candidate.group.task, rollout.rollout_id, score)
        if score is not None:
            self._has_metric, self.refusal = True, None
        elif problem is not None:
            self._note_failure(candidate, problem)
        found = GroupState.FAILED if self.refusal else self._found(candidate)
        if found is not GroupState.UNDER_WAY:
            self._decide(candidate, found)

    def _found(self, candidate: Candidate) -> GroupState:
        """Returns the verdict on the group. One that raises fails this group alone."""
        try:
            return outcome(candidate.scores, candidate.group.n, self.spec.filter)
        except Exception as bug:
            error = SamplingFailed(f"no verdict on group {candidate.name!r}: {shown(bug)}")
            self._note_failure(candidate, error.info())
            return GroupState.FAILED

    def refused(self, name: str, attempt: int, error: ErrorInfo) -> None:
        """Fails an attempt that the service cannot run."""
        candidate = self._under_way.get(name)
        if candidate is not None and candidate.attempt == attempt:
            self._note_failure(candidate, error)
            self._decide(candidate, GroupState.FAILED)

    def _note_failure(self, candidate: Candidate, error: ErrorInfo) -> None:
        is_missing = error.kind == MetricMissing.__name__
        if is_missing and not (self._has_metric or self.tally.scored):
            self.refusal = error
        candidate.last_error = error
        self.tally.last_failure = self.refusal or error

    def settle(self, version: int, pushed: int | None = None, *, is_overdue: bool = False) -> None:
        """Lets an open draw hold informative groups, and ends it when it is complete or due.

        `version`: the newest that the service knows of. `pushed`: the newest that it was given, if
        any; weights of newer versions were withdrawn.
        """
        draw = self._open_draw()
        if draw is None:
            return
        self._begin_stale_again(draw, version, pushed)
        for candidate in list(islice(self._informative.values(), self._missing())):
            self._hold(candidate, draw)
        if not self._missing():
            draw.state = DrawState.COMPLETE
        elif is_overdue:
            draw.state = DrawState.OVERDUE
        elif self._is_exhausted(draw):
            draw.state = DrawState.EXHAUSTED
        if draw.state is not DrawState.OPEN:
            self._give(draw)

    # --- what to do -----------------------------------------------------------------------------

    def begin(self) -> Iterator[Candidate]:
        """Yields the candidates to be begun now, each in flight when it is yielded."""
        while (
            self.refusal is None
            and self._has_room()
            and (candidate := self._waiting.next()) is not None
        ):
            if not candidate.attempt and self.levels.passes_over(candidate.group.task.difficulty):
                self._pass_over(candidate)
                continue
            candidate.state = GroupState.UNDER_WAY
            candidate.attempt += 1
            candidate.begun_in = self.draw.draw_id if self.draw else None
            self._under_way[candidate.name] = candidate
            self.changed[candidate.name] = candidate
            yield candidate

    @property
    def prefix(self) -> str:
        """Beginning of the ids of its groups. Journals of older code have no incarnations."""
        return f"{self.sampler_id}:" + (f"{self.incarnation}:" if self.incarnation else "")

    def group_of(self, candidate: Candidate) -> Group:
        """Returns the group that the pipeline runs for the newest attempt."""
        return candidate.attempted(self.prefix, client=self.sampler_id)

    def newer_than(self, pushed: int | None) -> list[DrawnGroup]:
        """Returns the groups of the newest draw that hold tokens newer than `pushed`."""
        groups = self.draw.groups if self.draw else []
        return [one for one in groups if _is_newer(one.newest_policy_version, pushed)]

    def under_way(self) -> list[Candidate]:
        return list(self._under_way.values())

    def begun(self) -> list[Candidate]:
        """Returns the candidates that were begun and are not at their end."""
        return [*self._under_way.values(), *self._informative.values(), *self._held.values()]

    def status(self, revision: int) -> SamplerStatus:
        counts = {name: one for name, one in self.tally if name != "score_sum"}
        counts["given"] += len(self._held)
        return SamplerStatus(
            sampler_id=self.sampler_id,
            revision=revision,
            wanted=0 if self.is_last else self._waiting.wanted(max(MIN_WAITING, self.slots // 2)),
            waiting=len(self._waiting),
            deferred=self._waiting.deferred,
            under_way=len(self._under_way),
            informative=len(self._informative),
            score_mean=self.tally.score_mean,
            draw=_snapshot(self.draw) if self.draw else None,
            **counts,
        )

    # --- waiting and in flight ------------------------------------------------------------------

    def _wait(self, candidate: Candidate) -> None:
        self.changed[candidate.name] = candidate
        self._waiting.put(candidate)
        self.levels.note(candidate.group.task.difficulty)

    def _has_room(self) -> bool:
        limits = [self.spec.groups_at_once]
        draw = self._open_draw()
        if draw is None:
            limits.append(self.spec.groups_ahead - len(self._informative))
        else:
            if self.spec.oversubscription is not None:
                limits.append(math.ceil(self.spec.oversubscription * self._missing()))
            if draw.spec.max_groups is not None:
                limits.append(draw.spec.max_groups - draw.finished)
        is_free = self._running() < self.slots or self.spec.groups_at_once is not None
        return (
            is_free
            and not self.refusal
            and all(len(self._under_way) < one for one in limits if one is not None)
        )

    def _running(self) -> int:
        return sum(one.group.n - len(one.scores) for one in self._under_way.values())

    # --- ends -----------------------------------------------------------------------------------

    def _decide(self, candidate: Candidate, state: GroupState) -> None:
        self.tally.count(candidate.scores.known())
        if (start := self.head_starts.note(candidate, state)) is not None:
            self.tally.head_started += 1
            self._begin_again(candidate, start)
        else:
            self._end(candidate, state)
        if draw := self._open_draw():
            draw.finished += 1

    def _end(self, candidate: Candidate, state: GroupState) -> None:
        candidate.state = state
        del self._under_way[candidate.name]
        self.changed[candidate.name] = candidate
        if state is GroupState.INFORMATIVE:
            self._informative[candidate.name] = candidate
        else:
            self.tally.decided_early += len(candidate.scores) < candidate.group.n
            self.tally.uninformative += state is GroupState.UNINFORMATIVE
            self.tally.failed += state is GroupState.FAILED
            self._drop(candidate)
        self._waiting.remember(candidate.group.task.task_id, state)
        self.levels.remember(candidate.group.task.difficulty, state)
        self._count(candidate)

    def _pass_over(self, candidate: Candidate) -> None:
        candidate.state = GroupState.PASSED_OVER
        self.changed[candidate.name] = candidate
        self.tally.passed_over += 1
        self._report(candidate)
        self._count(candidate)

    def _drop(self, candidate: Candidate) -> None:
        self._release(candidate)
        self._report(candidate)

    def _report(self, candidate: Candidate) -> None:
        told_by = self._open_draw() or self
        told_by.dropped.append(candidate.dropped())

    def _count(self, candidate: Candidate) -> None:
        told_by = self._open_draw() or self
        if counts := candidate.counts():
            told_by.difficulties = summed([*told_by.difficulties, counts])

    def _open_draw(self) -> Draw | None:
        is_open = self.draw is not None and self.draw.state is DrawState.OPEN
        return self.draw if is_open else None

    def _missing(self) -> int:
        assert self.draw is not None
        return self.draw.spec.target - len(self.draw.groups)

    def _hold(self, candidate: Candidate, draw: Draw) -> None:
        del self._informative[candidate.name]
        self._held[candidate.name] = candidate
        group = self.group_of(candidate)
        drawn = DrawnGroup(
            group_id=group.group_id,
            candidate=candidate.name,
            n=group.n,
            newest_policy_version=candidate.newest_version,
        )
        draw.groups.append(drawn)

    def _give(self, draw: Draw) -> None:
        """Gives the groups that the draw holds at its end."""
        for candidate in self._held.values():
            candidate.state = GroupState.GIVEN
            self.changed[candidate.name] = candidate
            self.tally.given += 1
            self.tally.carried += candidate.begun_in != draw.draw_id
        self._held.clear()
        if self.spec.surplus == "cancel":
            for candidate in self.under_way():
                self._begin_again(candidate)

    def _is_exhausted(self, draw: Draw) -> bool:
        if draw.spec.max_groups is not None and draw.finished >= draw.spec.max_groups:
            return True
        return self.is_last and not (self._waiting or self._under_way)

    def _begin_stale_again(self, draw: Draw, version: int, pushed: int | None) -> None:
        """Begins stale candidates again. The trainer may know of a newer version than the
        service."""
        oldest = max(version, draw.spec.policy_version or 0) - self.spec.max_staleness

        def is_stale(candidate: Candidate) -> bool:
            is_old = candidate.oldest_version is not None and candidate.oldest_version < oldest
            return is_old or _is_newer(candidate.newest_version, pushed)

        stale = {one.name for one in filter(is_stale, self.begun())}
        draw.groups = [one for one in draw.groups if one.candidate not in stale]
        for candidate in [one for one in self.begun() if one.name in stale]:
            self.tally.stale += 1
            self._begin_again(candidate)

    def _begin_again(self, candidate: Candidate, start: Start | None = None) -> None:
        for where in (self._held, self._informative, self._under_way):
            where.pop(candidate.name, None)
        self._release(candidate)
        candidate.forget_attempt()
        if start is not None:
            candidate.group = candidate.group.model_copy(update={"start": start})
        self._wait(candidate)

    def _release(self, candidate: Candidate) -> None:
        self.released.append(self.group_of(candidate))


def _is_newer(version: int | None, pushed: int | None) -> bool:
    return version is not None and pushed is not None and version > pushed


def _snapshot(draw: Draw) -> Draw:
    """Returns a copy with its own lists, whose items never change."""
    return draw.model_copy(update={"groups": [*draw.groups], "dropped": [*draw.dropped]})


def _score(rollout: Rollout, metric: str) -> tuple[float | None, ErrorInfo | None]:
    """Returns the rollout's score, or None and the reason."""
    if rollout.state is not RolloutState.DONE:
        return None, rollout.error
    components = rollout.reward_components
    score = rollout.reward if metric == "reward" else components.get(metric)
    if is_score(score):
        return score, None
    if score is not None:  # a journal of an older version has it
        problem = f"{rollout.rollout_id}: its {metric} {shown(score)} is beyond {MAX_SCORE:.0f}"
        return None, EvaluatorError(problem).info()
    names = ", ".join(sorted(components)) or "none"
    missing = MetricMissing(
        f"{rollout.rollout_id}: its components are {names}; the filter wants {metric!r}",
        hint="name one of them as the filter's metric, or 'reward'",
    )
    return None, missing.info()
