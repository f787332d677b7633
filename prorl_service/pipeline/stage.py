"""One stage of the pipeline: a queue and a fixed number of workers that serve it.

A worker takes a rollout, runs the stage's work, which keeps the rollout's own budget, and hands it
on. Whatever the work does, the rollout is handed on or ended, and never silently dropped.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Protocol

from prorl_service import metrics
from prorl_service.errors import STAGE_BLAME, AgentError, ProRLError, StageTimeout
from prorl_service.pipeline.queues import FairQueue, FifoQueue
from prorl_service.rollouts.containment import described
from prorl_service.rollouts.record import RolloutRecord
from prorl_service.schemas import ErrorInfo, RolloutState, Stage, StageTime
from prorl_service.utils import logs

log = logging.getLogger(__name__)

ENTERED = {
    Stage.INIT: RolloutState.INIT,
    Stage.RUN: RolloutState.RUNNING,
    Stage.EVAL: RolloutState.EVALUATING,
}
"""State of a rollout from when a worker takes it."""


class StageWork(Protocol):
    """The work of all stages; `pipeline.Pipeline` has it."""

    async def may_begin(self, stage: Stage, record: RolloutRecord) -> None:
        """Returns once a worker may begin the rollout, or it was cancelled."""

    async def work(self, stage: Stage, record: RolloutRecord) -> None:
        """Works on a rollout, within its budget."""

    async def hand_on(self, stage: Stage, record: RolloutRecord) -> None:
        """Takes a rollout on which the work succeeded, outside the budget."""

    async def fail(self, record: RolloutRecord, problem: ErrorInfo | None) -> None:
        """Takes a rollout on which the work failed, or a cancelled one, without a problem."""

    def accepts_timeout(self, record: RolloutRecord) -> bool:
        """Returns whether a rollout that used up its budget succeeds all the same."""

    def note_change(self) -> None:
        """A worker has taken a rollout, or is done with it."""


class StagePool:
    def __init__(
        self, stage: Stage, work: StageWork, *, workers: int, queue: FifoQueue | FairQueue
    ) -> None:
        self.stage = stage
        self.workers = workers
        self.running: dict[RolloutRecord, None] = {}
        self._queue = queue
        self._work = work

    async def serve(self) -> None:
        """Runs one worker, of which there are `workers`. Ends when cancelled, even if a handler
        hides that."""
        worker = asyncio.current_task()
        assert worker is not None
        while not worker.cancelling():
            await self._take(await self._queue.get())

    async def _take(self, record: RolloutRecord) -> None:
        await self._work.may_begin(self.stage, record)
        if not record.cancel_requested:
            await self._process(record)

    async def put(self, record: RolloutRecord) -> None:
        """Queues a rollout, and waits while the queue is full. Ends a cancelled rollout instead."""
        if record.cancel_requested:
            await self._work.fail(record, None)
        else:
            record.is_waiting = True
            await self._queue.put(record)

    def put_nowait(self, record: RolloutRecord) -> None:
        self._queue.put_nowait(record)

    @property
    def waiting(self) -> int:
        return self._queue.qsize()

    def next(self, limit: int) -> Iterable[RolloutRecord]:
        """Returns those of the first `limit` in the queue that were not cancelled, in order."""
        return (one for one in islice(self._queue, limit) if not one.cancel_requested)

    async def _process(self, record: RolloutRecord) -> None:
        record.is_waiting = False
        logs.rollout_id.set(record.rollout_id)
        record.move(ENTERED[self.stage])
        self.running[record] = None
        self._work.note_change()
        try:
            await self._work_and_hand_on(record)
        finally:
            del self.running[record]
            self._work.note_change()

    async def _work_and_hand_on(self, record: RolloutRecord) -> None:
        with self._timed(record):
            problem = await self._attempt(record)
        if problem is None and not record.cancel_requested:
            await self._work.hand_on(self.stage, record)
        else:
            await self._work.fail(record, problem)

    @contextmanager
    def _timed(self, record: RolloutRecord) -> Iterator[None]:
        """Charges the time inside to the stage, and the time since the last stage to the queue."""
        timings, waited_s = record.timings, record.waited_s
        uncharged_s = timings.waited_s
        started, started_at = time.monotonic(), time.time()
        timings.queue_s += waited_s
        try:
            yield
        finally:
            record.waiting_since = time.monotonic()
            took_s = record.waiting_since - started
            before_s = getattr(timings, f"{self.stage.value}_s")
            setattr(timings, f"{self.stage.value}_s", before_s + took_s)
            visit = StageTime(
                stage=self.stage,
                attempt=record.attempt,
                started_at=started_at,
                queue_s=waited_s,
                took_s=took_s,
                waited_s=timings.waited_s - uncharged_s,
            )
            record.stages.append(visit)
            metrics.stage_done(self.stage, waited_s=waited_s, took_s=took_s)

    async def _attempt(self, record: RolloutRecord) -> ErrorInfo | None:
        """Runs the work: the boundary to foreign code, such as agents, sandboxes and engines."""
        work = record.work = asyncio.create_task(self._contained(record), name=self._name(record))
        try:
            await work
        except asyncio.CancelledError:
            worker = asyncio.current_task()
            if worker is not None and worker.cancelling():
                raise
            if not record.cancel_requested:
                return self._unexpected(RuntimeError("the handler was cancelled from inside"))
        except StageTimeout as error:
            return None if self._work.accepts_timeout(record) else error.info(self.stage)
        except ProRLError as error:
            return error.info(self.stage)
        except Exception as error:
            log.exception("rollout %s: %s failed", record.rollout_id, self.stage.value.upper())
            return self._unexpected(error)
        finally:
            record.work = None
        return None

    def _name(self, record: RolloutRecord) -> str:
        agent = record.group.task.agent
        return f"{self.stage.value.upper()} of agent {agent!r}, rollout {record.rollout_id}"

    async def _contained(self, record: RolloutRecord) -> None:
        try:
            await self._work.work(self.stage, record)
        except (Exception, asyncio.CancelledError):
            raise
        except BaseException as end:  # it would end the event loop, and the service with it
            stage = self.stage.value.upper()
            raise AgentError(f"the agent's {stage} raised {described(end)}") from end

    def _unexpected(self, error: Exception) -> ErrorInfo:
        return ErrorInfo(
            kind=type(error).__name__,
            blame=STAGE_BLAME[self.stage],
            message=described(error),
            hint="an exception that the service does not know: the log has its traceback",
            stage=self.stage,
        )
