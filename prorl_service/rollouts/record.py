"""One rollout on its way: its state, its budgets and what it has come to so far.

The only place that changes a rollout's state, and only along `LEGAL_MOVES`. A rollout has ended
when its end is in the journal, and not before: until then nobody is told.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from prorl_service import metrics
from prorl_service.agents.base import AgentHandler, RolloutContext, Verdict
from prorl_service.rollouts.journal import Journal
from prorl_service.rollouts.journal.tables import EndedRow
from prorl_service.schemas import (
    LEGAL_MOVES,
    TERMINAL_STATES,
    Blame,
    ErrorInfo,
    FinishReason,
    Group,
    Rollout,
    RolloutState,
    Stage,
    Timings,
    Trajectory,
    Turn,
)
from prorl_service.schemas.arrays import PACKED
from prorl_service.utils.budget import WorkClock

log = logging.getLogger(__name__)


UNWRITABLE = "UnwritableAnswer"


class IllegalMove(RuntimeError):
    """A bug in the pipeline, never a user's fault."""


@dataclass(slots=True)
class Admitted:
    """A group that passed all checks, with what the checks made. Shared by its rollouts."""

    group: Group
    agent: type[AgentHandler] | None
    """None for one that the service had before it was restarted, and has no more."""
    model: str | None = None
    """Whose ids the prompt's are; None after a restart, when no tokenizer is known yet."""
    prompt_ids: tuple[int, ...] = ()
    problem: ErrorInfo | None = None
    """Reason why none of its rollouts can run."""


class Work(Protocol):
    def cancel(self) -> object: ...


@dataclass(frozen=True, slots=True)
class EndedRollout:
    packed: bytes
    """With its trajectory, as packed JSON: a fraction of the objects' memory."""

    def to_wire(self) -> Rollout:
        return Rollout.model_validate_json(self.packed)

    def to_json(self, *, packed: bool) -> bytes:
        return self.packed if packed else self.to_wire().model_dump_json().encode()


@dataclass(slots=True, eq=False)
class RolloutRecord:
    admitted: Admitted
    index: int
    journal: Journal
    attempt: int = 0
    state: RolloutState = RolloutState.QUEUED
    handler: AgentHandler | None = None
    context: RolloutContext | None = None
    finish_reason: FinishReason = FinishReason.ERROR
    verdict: Verdict | None = None
    error: ErrorInfo | None = None
    oldest_version: int | None = None
    newest_version: int | None = None
    turns: int = 0
    """Number of model calls, once it has ended."""
    clock: WorkClock = field(default_factory=WorkClock)
    timings: Timings = field(default_factory=Timings)
    created_at: float = field(default_factory=time.time)
    work: Work | None = None
    """The stage's, or another service's, while it is under way."""
    cancel_requested: bool = False
    end_state: RolloutState | None = None
    """Decided, and perhaps not yet written."""
    is_waiting: bool = True
    """In a queue, and nobody's to end but a canceller's."""
    _waiting_since: float = field(default_factory=time.monotonic)
    _releasing: asyncio.Task[None] | None = None
    _watchers: list[Callable[["RolloutRecord"], None]] = field(default_factory=list)

    @property
    def group(self) -> Group:
        return self.admitted.group

    @property
    def agent(self) -> type[AgentHandler]:
        assert self.admitted.agent is not None
        return self.admitted.agent

    @property
    def rollout_id(self) -> str:
        return self.group.rollout_id(self.index)

    @property
    def is_terminal(self) -> bool:
        return self.state in TERMINAL_STATES

    @property
    def waited_s(self) -> float:
        """Seconds since it was queued, or since its last stage."""
        return time.monotonic() - self._waiting_since

    def budget_s(self, stage: Stage) -> float:
        return float(getattr(self.group.limits, f"{stage.value}_timeout_s"))

    def seed(self) -> int | None:
        """A seed per rollout, far enough from its siblings' that turns do not collide."""
        seed = self.group.sampling.seed
        return None if seed is None else seed + self.index * self.group.limits.max_turns

    def in_progress(self) -> tuple[AgentHandler, RolloutContext]:
        assert self.handler is not None
        assert self.context is not None
        return self.handler, self.context

    def move(self, state: RolloutState) -> None:
        if state not in LEGAL_MOVES[self.state]:
            raise IllegalMove(f"{self.rollout_id}: {self.state} -> {state}")
        self.state = state

    def begin(self) -> "asyncio.Future[None]":
        """Done when the attempt is on disk: should the process die of it, the next one knows."""
        self.attempt += 1
        return self._write_attempt()

    def take_back_attempt(self) -> None:
        """An orderly stop of the service gave it up."""
        self.attempt = max(0, self.attempt - 1)
        self._write_attempt()

    def _write_attempt(self) -> "asyncio.Future[None]":
        return self.journal.begin(self.rollout_id, self.attempt)

    def start_over(self) -> None:
        """Queued again, with nothing of the attempt before. Its resources are to be released."""
        self.move(RolloutState.QUEUED)
        self.handler = self.context = self.verdict = None
        self.finish_reason, self.is_waiting = FinishReason.ERROR, True

    def end(self, state: RolloutState, error: ErrorInfo | None = None) -> None:
        """Terminal move, once it is written. Drops everything but the answer.

        An answer that cannot be written down (a handler's odd values) becomes a failure.
        """
        if self.end_state is not None or state not in LEGAL_MOVES[self.state]:
            raise IllegalMove(f"{self.rollout_id}: {self.end_state or self.state} -> {state}")
        try:
            row = self._row(state, error, self._trajectory())
        except Exception as unwritable:
            log.exception("rollout %s: its answer cannot be written", self.rollout_id)
            state, error = RolloutState.FAILED, _unwritable(unwritable)
            row = self._row(state, error, None)
        turns = self.context.turns if self.context is not None else []
        self._end_with(row, error, turns)

    def end_as(self, answer: Rollout, *, waited_s: float) -> "asyncio.Future[Counter[str]]":
        """Terminal move, with the answer of a service that was given it after `waited_s`.

        The future is done when it is written, and cancelled if the journal is closed before.
        """
        assert self.end_state is None
        error = self.error if self.cancel_requested else answer.error
        self.attempt += answer.attempt - 1
        self.oldest_version = answer.oldest_policy_version
        self.newest_version = answer.newest_policy_version
        self.timings = answer.timings
        self.timings.queue_s += waited_s
        if answer.state is RolloutState.DONE:
            self.move(RolloutState.EVALUATING)
            assert answer.reward is not None
            self.verdict = Verdict(answer.reward, answer.reward_components, answer.report)
        row = self._row(answer.state, error, answer.trajectory)
        return self._end_with(row, error, answer.trajectory.turns if answer.trajectory else [])

    def _end_with(
        self, row: EndedRow, error: ErrorInfo | None, turns: Sequence[Turn]
    ) -> "asyncio.Future[Counter[str]]":
        self.end_state, self.error, self.turns = row.state, error, len(turns)
        metrics.rollout_ended(row.state, error, sampled=_have_sampled(turns))
        self.handler = self.context = self.work = None
        return self._write(row)

    def _write(self, row: EndedRow) -> "asyncio.Future[Counter[str]]":
        written = self.journal.end(row)
        written.add_done_callback(self._written)
        return written

    def _written(self, written: "asyncio.Future[Counter[str]]") -> None:
        if written.cancelled():
            return  # the journal was closed: it will be told of as unfinished
        if (refusal := written.exception()) is not None:
            self._end_without_answer(refusal)
            return
        assert self.end_state is not None
        self.move(self.end_state)
        for watcher in self._watchers:
            watcher(self)
        self._watchers.clear()

    def _end_without_answer(self, refusal: BaseException) -> None:
        """The journal does not take it, not now and not later: it is too large."""
        log.error("rollout %s: its answer cannot be written: %s", self.rollout_id, refusal)
        if self.verdict is None and self.error is not None and self.error.kind == UNWRITABLE:
            return  # a failure without an answer is refused, too: a bug
        self.verdict = None
        self.end_state, self.error = RolloutState.FAILED, _unwritable(refusal)
        self._write(self._row(RolloutState.FAILED, self.error, None))

    def _trajectory(self) -> Trajectory | None:
        if self.context is None:
            return None
        versions = self.context.ledger.versions
        self.oldest_version = min(versions, default=None)
        self.newest_version = max(versions, default=None)
        return self.context.trajectory(self.finish_reason) if self.context.turns else None

    def _row(
        self, state: RolloutState, error: ErrorInfo | None, trajectory: Trajectory | None
    ) -> EndedRow:
        answer = self.to_wire(state, error)
        summary = answer.model_dump_json().encode()
        answer.trajectory = trajectory
        if self.verdict is not None and state is RolloutState.DONE:
            answer.report = self.verdict.report
        packed = answer.model_dump_json(context=PACKED).encode()
        return EndedRow(self.rollout_id, self.group.group_id, self.attempt, state, summary, packed)

    def waited_for(self) -> Blame | None:
        """Whom the handler was waiting for, if the context knows."""
        calls_model = self.context is not None and self.context.calls_model
        return Blame.BACKEND if calls_model else None

    def request_cancel(self, reason: ErrorInfo | None = None) -> None:
        """The worker that holds the rollout ends it; one in a queue needs `end_if_waiting`."""
        if self.end_state is None and not self.cancel_requested:
            self.cancel_requested, self.error = True, reason
        if self.work is not None:
            self.work.cancel()

    async def end_if_waiting(self) -> None:
        if self.is_waiting and self.end_state is None:
            await self.release()
            if self.end_state is None:
                self.end(RolloutState.CANCELLED, self.error)

    async def release(self) -> None:
        """Free sandboxes and backend pin. Goes on when the caller is cancelled; never raises."""
        if self.context is None:
            return
        if self._releasing is None:
            self._releasing = asyncio.create_task(_close(self.context, self.rollout_id))
        await asyncio.shield(self._releasing)
        self._releasing = None

    def watch(self, watcher: Callable[["RolloutRecord"], None]) -> None:
        """Call `watcher` once, when the rollout ends; at once if it has."""
        if self.is_terminal:
            watcher(self)
        else:
            self._watchers.append(watcher)

    def unwatch(self, watcher: Callable[["RolloutRecord"], None]) -> None:
        if watcher in self._watchers:
            self._watchers.remove(watcher)

    @contextmanager
    def timed(self, stage: Stage) -> Iterator[None]:
        """Charge the time inside to `stage`, and the time since the last stage to the queue."""
        started = time.monotonic()
        waited_s = started - self._waiting_since
        self.timings.queue_s += waited_s
        waited_before_s = self.clock.waited_s
        try:
            yield
        finally:
            self._waiting_since = time.monotonic()
            took_s = self._waiting_since - started
            before_s = getattr(self.timings, f"{stage.value}_s")
            setattr(self.timings, f"{stage.value}_s", before_s + took_s)
            self.timings.waited_s += self.clock.waited_s - waited_before_s
            metrics.stage_done(stage, waited_s=waited_s, took_s=took_s)

    def to_wire(self, state: RolloutState | None = None, error: ErrorInfo | None = None) -> Rollout:
        """Without the trajectory; as it is, or as it will be in `state`."""
        state = state or self.state
        verdict = self.verdict if state is RolloutState.DONE else None
        return Rollout(
            rollout_id=self.rollout_id,
            group_id=self.group.group_id,
            task_id=self.group.task.task_id,
            agent=self.group.task.agent,
            index=self.index,
            state=state,
            attempt=self.attempt,
            error=error if self.end_state is None else self.error,
            reward=verdict.reward if verdict else None,
            reward_components=verdict.components if verdict else {},
            oldest_policy_version=self.oldest_version,
            newest_policy_version=self.newest_version,
            timings=self.timings,
            created_at=self.created_at,
        )

    def to_json(self, *, packed: bool) -> bytes:
        """As it is; whether arrays are to be packed does not matter, for there are none yet."""
        return self.to_wire().model_dump_json().encode()


def _have_sampled(turns: Sequence[Turn]) -> bool:
    """More than the token that ends a turn, in one turn at least."""
    return any(turn.stop - turn.start > 1 for turn in turns)


def _unwritable(problem: BaseException) -> ErrorInfo:
    """ASCII only, and nothing of the problem's own words: they may be what cannot be written."""
    return ErrorInfo(
        kind=UNWRITABLE,
        blame=Blame.AGENT,
        message=f"the rollout's answer cannot be written: {type(problem).__name__}",
        hint="an agent's values are of the wrong kind or too large; the service's log says which",
    )


async def _close(context: RolloutContext, rollout_id: str) -> None:
    try:
        await context.resources.aclose()
    except Exception:  # a sandbox that cannot be stopped must not cost the rollout its result
        log.exception("rollout %s: releasing its resources failed", rollout_id)
