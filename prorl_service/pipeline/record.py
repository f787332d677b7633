"""One rollout on its way: its state, its budgets and what it has come to so far.

The only place that changes a rollout's state, and only along `LEGAL_MOVES`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from prorl_service.agents.base import AgentHandler, RolloutContext, Verdict
from prorl_service.arrays import PACKED
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
)

log = logging.getLogger(__name__)


class IllegalMove(RuntimeError):
    """A bug in the pipeline, never a user's fault."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A group that passed all checks, with what the checks made. Shared by its rollouts."""

    group: Group
    handler: type[AgentHandler]
    prompt_ids: Sequence[int]


@dataclass(slots=True, eq=False)
class RolloutRecord:
    admitted: Admitted
    index: int
    state: RolloutState = RolloutState.QUEUED
    handler: AgentHandler | None = None
    context: RolloutContext | None = None
    finish_reason: FinishReason = FinishReason.ERROR
    verdict: Verdict | None = None
    error: ErrorInfo | None = None
    packed: bytes | None = None
    """The ended rollout with its trajectory, as packed JSON: a fraction of the objects' memory."""
    timings: Timings = field(default_factory=Timings)
    created_at: float = field(default_factory=time.time)
    work: asyncio.Task[None] | None = None
    """The stage's work while one is under way."""
    cancel_requested: bool = False
    is_waiting: bool = True
    """In a queue, and nobody's to end but a canceller's."""
    _waiting_since: float = field(default_factory=time.monotonic)
    _releasing: asyncio.Task[None] | None = None
    _watchers: list[Callable[["RolloutRecord"], None]] = field(default_factory=list)

    @property
    def group(self) -> Group:
        return self.admitted.group

    @property
    def rollout_id(self) -> str:
        return self.group.rollout_id(self.index)

    @property
    def is_terminal(self) -> bool:
        return self.state in TERMINAL_STATES

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

    def end(self, state: RolloutState, error: ErrorInfo | None = None) -> None:
        """Terminal move. Keeps the answer, drops everything else, tells the watchers.

        An answer that cannot be written down (a handler's odd values) becomes a failure.
        """
        try:
            packed = self._answer(state, error, self.context)
        except Exception as unwritable:
            log.exception("rollout %s: its answer cannot be written", self.rollout_id)
            state, error = RolloutState.FAILED, _unwritable(unwritable)
            packed = self._answer(state, error, None)
        self.move(state)
        self.error, self.packed = error, packed
        self.handler = self.context = self.work = None
        for watcher in self._watchers:
            watcher(self)
        self._watchers.clear()

    def _answer(
        self, state: RolloutState, error: ErrorInfo | None, context: RolloutContext | None
    ) -> bytes:
        answer = self.to_wire(state, error)
        if context is not None and context.turns:
            answer.trajectory = context.trajectory(self.finish_reason)
        return answer.model_dump_json(context=PACKED).encode()

    def waited_for(self) -> Blame | None:
        """Whom the handler was waiting for, if the context knows."""
        calls_model = self.context is not None and self.context.calls_model
        return Blame.BACKEND if calls_model else None

    def request_cancel(self) -> None:
        """The worker that holds the rollout ends it; one in a queue needs `end_if_waiting`."""
        self.cancel_requested = self.cancel_requested or not self.is_terminal
        if self.work is not None:
            self.work.cancel()

    async def end_if_waiting(self) -> None:
        if self.is_waiting and not self.is_terminal:
            await self.release()
            if not self.is_terminal:
                self.end(RolloutState.CANCELLED)

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
        self.timings.queue_s += started - self._waiting_since
        try:
            yield
        finally:
            self._waiting_since = time.monotonic()
            setattr(self.timings, f"{stage.value}_s", self._waiting_since - started)

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
            error=error or self.error,
            reward=verdict.reward if verdict else None,
            reward_components=verdict.components if verdict else {},
            timings=self.timings,
            created_at=self.created_at,
        )

    def to_json(self, *, packed: bool) -> bytes:
        """With the trajectory, once it has ended."""
        if self.packed is None:
            return self.to_wire().model_dump_json().encode()
        if packed:
            return self.packed
        return Rollout.model_validate_json(self.packed).model_dump_json().encode()


def _unwritable(problem: Exception) -> ErrorInfo:
    """ASCII only, and nothing of the problem's own words: they may be what cannot be written."""
    return ErrorInfo(
        kind="UnwritableAnswer",
        blame=Blame.AGENT,
        message=f"the rollout's answer cannot be written: {type(problem).__name__}",
        hint="an agent's values are of the wrong kind; the service's log has the traceback",
    )


async def _close(context: RolloutContext, rollout_id: str) -> None:
    try:
        await context.resources.aclose()
    except Exception:  # a sandbox that cannot be stopped must not cost the rollout its result
        log.exception("rollout %s: releasing its resources failed", rollout_id)
