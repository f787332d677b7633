"""One rollout, wherever it is executed: what it is, how far it is, and how it ends.

The only place that changes a rollout's state, and only along `LEGAL_MOVES`. A rollout has ended
once its end is in the journal; its watchers are called then. Knows nothing of agents or of the
resources of an attempt, which `pipeline.pipeline` holds.
"""

import asyncio
import hashlib
import logging
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, Self

from prorl_service import metrics
from prorl_service.errors import ResultLost
from prorl_service.rollouts.journal import Journal
from prorl_service.rollouts.journal.tables import EndedRow, Remains
from prorl_service.schemas import (
    CONTENT,
    LEGAL_MOVES,
    TERMINAL_STATES,
    Blame,
    ErrorInfo,
    Figures,
    Group,
    Resumption,
    Rollout,
    RolloutState,
    Stage,
    StageTime,
    Timings,
)
from prorl_service.schemas.arrays import PACKED

log = logging.getLogger(__name__)


UNWRITABLE = "UnwritableAnswer"
HELD_ELSEWHERE = b'{"held_by":'
"""Start of an answer in the journal of an earlier version's front that left results at services."""
LEFT_ELSEWHERE = ResultLost(
    "an earlier version left its result at another service (`--durability node`)",
    hint="submit its task again, in a group with another id",
)
RESULT_ID = re.compile(rb',("result_id":"[^"\\]+")\}$')
"""The identity of a result, at the end of its summary."""


class IllegalMove(RuntimeError):
    """A bug in the pipeline, never a user's fault."""


@dataclass(slots=True, repr=False)
class Admitted:
    """A checked group with the results of the checks. Shared by its rollouts."""

    group: Group
    model: str | None = None
    """Name of the model whose tokenizer made `prompt_ids`; None after a restart, when no tokenizer
    is known yet."""
    prompt_ids: tuple[int, ...] = ()
    problem: ErrorInfo | None = None
    """Reason why its rollouts cannot run."""


class Work(Protocol):
    def cancel(self) -> object: ...


class Result(Protocol):
    """What an attempt has achieved."""

    def add_result(self, answer: Rollout) -> Rollout:
        """Returns the wire form with it. Raises if odd values do not fit."""


class RecordObserver(Protocol):
    """Hears of each change of a rollout; `observers.Observers` passes it on to all observers."""

    def moved(self, record: "RolloutRecord") -> None: ...

    def ended(self, record: "RolloutRecord", row: EndedRow) -> None: ...


@dataclass(frozen=True, slots=True)
class EndedRollout:
    packed: bytes = field(repr=False)
    """Rollout with its trajectory, as packed JSON: a fraction of the objects' memory."""
    summary: bytes = field(default=b"", repr=False)
    """Rollout without its content; empty if unknown."""

    @classmethod
    def of(cls, rollout: Rollout) -> Self:
        summary = summary_of(rollout)
        return cls(joined(summary, content_of(rollout)), summary)

    @classmethod
    def stored(cls, summary: bytes, answer: bytes) -> Self:
        """Returns what the journal has; a failure in place of a result that is not there."""
        if not answer.startswith(HELD_ELSEWHERE):
            return cls(answer, summary)
        return cls.of(_failed(Rollout.model_validate_json(summary), LEFT_ELSEWHERE.info()))

    def to_wire(self) -> Rollout:
        return Rollout.model_validate_json(self.packed)

    def to_json(self, *, packed: bool) -> bytes:
        return self.packed if packed else self.to_wire().model_dump_json().encode()

    def parts(self) -> tuple[bytes, bytes]:
        """Returns the summary and the content, as packed JSON objects."""
        identity = RESULT_ID.search(self.summary)
        if identity is not None and self.packed.startswith(self.summary[:-1] + b","):
            return self.summary, b"{" + identity[1] + self.packed[len(self.summary) - 1 :]
        whole = self.to_wire()  # an earlier version wrote it, in another order or without identity
        digest = hashlib.blake2b(self.packed, digest_size=16).hexdigest()
        whole.result_id = whole.result_id or digest
        whole.figures = whole.figures or Figures.of(whole.trajectory)
        return summary_of(whole), content_of(whole)


def summary_of(rollout: Rollout) -> bytes:
    """Returns the rollout without its content, as JSON."""
    return rollout.model_dump_json(exclude=set(CONTENT)).encode()


def content_of(rollout: Rollout) -> bytes:
    """Returns the content alone, as packed JSON that begins with the result's identity."""
    return rollout.model_dump_json(include={"result_id", *CONTENT}, context=PACKED).encode()


def joined(summary: bytes, content: bytes) -> bytes:
    """Returns the whole rollout: the inverse of `EndedRollout.parts`. Raises `ValueError` if the
    parts are not of one result."""
    identity = RESULT_ID.search(summary)
    if identity is None or not content.startswith(b"{" + identity[1] + b","):
        raise ValueError("the summary and the content are not of one result")
    return summary[:-1] + content[1 + len(identity[1]) :]


@dataclass(slots=True, eq=False, repr=False)
class RolloutRecord:
    admitted: Admitted
    index: int
    journal: Journal
    observer: "RecordObserver | None" = None
    attempt: int = 0
    excused_attempts: int = 0
    """Number of attempts that ended with the service's process after they had saved turns."""
    restored_attempts: int = 0
    """Number of attempts in earlier processes."""
    has_saved_turns: bool = False
    """True if it continues from turns that an earlier process saved."""
    resumed: list[Resumption] = field(default_factory=list)
    worked_s: float = 0.0
    """Seconds of RUN's budget that an earlier process used for the turns that were saved."""
    state: RolloutState = RolloutState.QUEUED
    outcome: Rollout | None = None
    """Answer with which it ends, without trajectory and report; perhaps not yet written."""
    turns: int = 0
    """Number of model calls, once `outcome` is set."""
    ended_at: float | None = None
    """Unix time of the end, once `outcome` is set."""
    timings: Timings = field(default_factory=Timings)
    stages: list[StageTime] = field(default_factory=list)
    """Visits to stages that have ended."""
    created_at: float = field(default_factory=time.time)
    waiting_since: float = field(default_factory=time.monotonic)
    """Monotonic time at which it was queued, or its last stage ended."""
    is_waiting: bool = True
    """True while it is in a queue, where only a cancellation may end it."""
    work: Work | None = None
    """Work of a stage or of another service on it, while in flight."""
    cancel_requested: bool = False
    cancel_reason: ErrorInfo | None = None
    _watchers: list[Callable[["RolloutRecord"], None]] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<record of {self.rollout_id}, {self.state.value}>"

    @property
    def group(self) -> Group:
        return self.admitted.group

    @property
    def rollout_id(self) -> str:
        return self.group.rollout_id(self.index)

    @property
    def is_terminal(self) -> bool:
        return self.state in TERMINAL_STATES

    @property
    def waited_s(self) -> float:
        """Seconds since it was queued, or since its last stage."""
        return time.monotonic() - self.waiting_since

    def budget_s(self, stage: Stage) -> float:
        budget_s = float(getattr(self.group.limits, f"{stage.value}_timeout_s"))
        return budget_s - self.worked_s if stage is Stage.RUN else budget_s

    def seed(self) -> int | None:
        """Returns a seed, far enough from those of its siblings that turns do not collide."""
        seed = self.group.sampling.seed
        return None if seed is None else seed + self.index * self.group.limits.max_turns

    def move(self, state: RolloutState) -> None:
        if state not in LEGAL_MOVES[self.state]:
            raise IllegalMove(f"{self.rollout_id}: {self.state} -> {state}")
        self.state = state
        if self.observer is not None:
            self.observer.moved(self)

    # --- attempts -------------------------------------------------------------------------------

    def begin(self) -> asyncio.Future[None]:
        """Begins an attempt. The future is done once that is on disk: if the attempt ends the
        process, the next process knows of it."""
        self.attempt += 1
        return self._write_attempt()

    def take_back_attempt(self) -> None:
        """Uncounts the attempt, which an orderly stop of the service abandoned."""
        self.attempt = max(0, self.attempt - 1)
        self._write_attempt()

    def _write_attempt(self) -> asyncio.Future[None]:
        return self.journal.begin(self.rollout_id, self.attempt)

    @property
    def counted_attempts(self) -> int:
        """Number of attempts that count against the most allowed."""
        return self.attempt - self.excused_attempts

    def start_over(self) -> None:
        """Marks the rollout as queued again, from scratch."""
        self.move(RolloutState.QUEUED)
        self.is_waiting = True

    def request_cancel(self, reason: ErrorInfo | None = None) -> None:
        """Requests a cancellation. The worker that holds the rollout ends it; the executor ends one
        that waits."""
        if self.outcome is None and not self.cancel_requested:
            self.cancel_requested, self.cancel_reason = True, reason
        if self.work is not None:
            self.work.cancel()

    # --- end ------------------------------------------------------------------------------------

    def end(
        self, state: RolloutState, error: ErrorInfo | None = None, result: "Result | None" = None
    ) -> asyncio.Future[Counter[str]]:
        """Ends the rollout in `state`; see `finish`. `result`: that of its last attempt."""
        answer = self._wire(state, error)
        if result is not None:
            try:
                answer = result.add_result(answer)
            except Exception as problem:
                log.exception("rollout %s: its answer cannot be written", self.rollout_id)
                answer = unwritable(answer, problem)
        return self.finish(answer)

    def finish(self, answer: Rollout, content: bytes | None = None) -> asyncio.Future[Counter[str]]:
        """Ends the rollout as `answer` says, once that is written. The only way to end it.

        `answer` may be only the summary, with the `content` as packed JSON. The future is done
        then, or cancelled if the journal is closed before. An answer that cannot be written (a
        handler's odd values) becomes a failure.
        """
        state = self.state if self.outcome is None else self.outcome.state
        if not answer.is_terminal or answer.state not in LEGAL_MOVES[state]:
            raise IllegalMove(f"{self.rollout_id}: {state} -> {answer.state}")
        if answer.result_id is None:
            answer = answer.model_copy(update={"result_id": secrets.token_hex(16)})
        try:
            row = self._row(answer, content)
        except Exception as problem:
            log.exception("rollout %s: its answer cannot be written", self.rollout_id)
            answer = unwritable(answer, problem)
            row = self._row(answer)
        figures = row.figures
        self.turns, self.work = figures.turns, None
        has_sampled = figures.sampled_tokens > figures.turns  # more than the ends of turns
        metrics.rollout_ended(answer.state, answer.error, sampled=has_sampled)
        return self._write(answer, row)

    def _row(self, answer: Rollout, content: bytes | None = None) -> EndedRow:
        figures = answer.figures or Figures.of(answer.trajectory)
        summary = summary_of(answer.model_copy(update={"figures": figures}))
        packed = joined(summary, content_of(answer) if content is None else content)
        return EndedRow(
            self.rollout_id,
            self.group.group_id,
            answer.attempt,
            answer.state,
            summary,
            packed,
            figures,
            owner=self.group.owner,
            client=self.group.submitter,
            group_size=self.group.n,
        )

    def _write(self, answer: Rollout, row: EndedRow) -> asyncio.Future[Counter[str]]:
        outcome = self.outcome = _summary(answer).model_copy(update={"figures": row.figures})
        self.ended_at = row.ended_at
        written = self.journal.end(row)
        written.add_done_callback(partial(self._written, outcome, row))
        return written

    def _written(
        self, outcome: Rollout, row: EndedRow, written: asyncio.Future[Counter[str]]
    ) -> None:
        if written.cancelled():
            return  # the journal was closed: the next start finds it unfinished
        if (refusal := written.exception()) is not None:
            self._fail_unwritten(outcome, refusal)
            return
        self.move(outcome.state)
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            self._tell(partial(watcher, self))
        if self.observer is not None:
            self.observer.ended(self, row)

    def _tell(self, watcher: Callable[[], None]) -> None:
        """Calls a watcher, whose bugs must not keep the end from the others."""
        try:
            watcher()
        except Exception as bug:
            text = "rollout %s: one that watched its end failed: %.500r"
            log.error(text, self.rollout_id, bug)

    def _fail_unwritten(self, outcome: Rollout, refusal: BaseException) -> None:
        """Fails the rollout: the journal refuses its answer for good, as it is too large."""
        log.error("rollout %s: its answer cannot be written: %s", self.rollout_id, refusal)
        if outcome.error is not None and outcome.error.kind == UNWRITABLE:
            return  # a failure without an answer is refused, too: a bug
        failure = unwritable(outcome, refusal)
        self._write(failure, self._row(failure))

    def watch(self, watcher: Callable[["RolloutRecord"], None]) -> None:
        """Calls `watcher` once, when the rollout ends; immediately if it has ended."""
        if self.is_terminal:
            self._tell(partial(watcher, self))
        else:
            self._watchers.append(watcher)

    def unwatch(self, watcher: Callable[["RolloutRecord"], None]) -> None:
        if watcher in self._watchers:
            self._watchers.remove(watcher)

    # --- wire -----------------------------------------------------------------------------------

    def _wire(self, state: RolloutState, error: ErrorInfo | None = None) -> Rollout:
        return Rollout(
            rollout_id=self.rollout_id,
            group_id=self.group.group_id,
            task_id=self.group.task.task_id,
            agent=self.group.task.agent,
            index=self.index,
            state=state,
            attempt=self.attempt,
            error=error,
            timings=self.timings,
            stages=self.stages,
            resumed=self.resumed,
            created_at=self.created_at,
        )

    def to_wire(self) -> Rollout:
        """Returns the rollout as it is, without the trajectory."""
        if self.outcome is not None and self.is_terminal:
            return self.outcome
        return self._wire(self.state)

    def to_json(self, *, packed: bool) -> bytes:
        """Returns the rollout as it is; `packed` does not matter, as there are no arrays yet."""
        return self.to_wire().model_dump_json().encode()


def unwritable(answer: Rollout, problem: BaseException) -> Rollout:
    """Returns `answer` as a failure without a result. Its error is ASCII and does not quote
    `problem`, whose words may be what cannot be written."""
    error = ErrorInfo(
        kind=UNWRITABLE,
        blame=Blame.AGENT,
        message=f"the rollout's answer cannot be written: {type(problem).__name__}",
        hint="an agent's values are of the wrong kind or too large; the service's log says which",
    )
    return _failed(answer, error)


def _failed(answer: Rollout, error: ErrorInfo) -> Rollout:
    failure = {"state": RolloutState.FAILED, "error": error, "reward": None, "figures": None}
    own = {"reward_components": {}, "result_id": secrets.token_hex(16)}
    return _summary(answer).model_copy(update=failure | own)


def failed_result(rollout_id: str, remains: Remains, lost: ResultLost) -> Rollout:
    """Returns the failure in the place of a result that the journal has lost, with what `remains`
    of it."""
    group_id, _, index = rollout_id.rpartition(".")
    known: dict[str, Any] = {"task_id": group_id, "agent": "", "created_at": 0.0}
    with suppress(ValueError):
        if remains.summary is not None:
            known = dict(Rollout.model_validate_json(remains.summary))
        elif remains.request is not None:
            task = Group.model_validate_json(remains.request).task
            known |= {"task_id": task.task_id, "agent": task.agent}
    ids = {"rollout_id": rollout_id, "group_id": group_id, "index": int(index)}
    known |= {"state": RolloutState.FAILED}
    return _failed(Rollout.model_validate(known | ids), lost.info())


def _summary(answer: Rollout) -> Rollout:
    return answer.model_copy(update={"trajectory": None, "report": None})
