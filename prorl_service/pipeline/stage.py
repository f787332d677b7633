"""One stage of the pipeline: a queue and a fixed number of workers that serve it.

A worker takes a rollout, runs the stage's work within the rollout's own budget, and hands it on.
Whatever the work does, the rollout is handed on or ended, and never silently dropped.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice

from prorl_service.errors import STAGE_BLAME, AgentError, ProRLError, StageTimeout
from prorl_service.pipeline.queues import FairQueue, FifoQueue
from prorl_service.rollouts.containment import described
from prorl_service.rollouts.record import RolloutRecord
from prorl_service.schemas import ErrorInfo, FinishReason, RolloutState, Stage
from prorl_service.utils import logs

log = logging.getLogger(__name__)

Work = Callable[[RolloutRecord], Awaitable[None]]


class StagePool:
    def __init__(
        self,
        stage: Stage,
        *,
        workers: int,
        queue: FifoQueue | FairQueue,
        work: Work,
        on_success: Work,
        entering: RolloutState,
        gate: Callable[[], Awaitable[object]] | None = None,
        on_change: Callable[[], None],
        retry: Callable[[RolloutRecord, ErrorInfo], bool],
        is_good_enough: Callable[[RolloutRecord], bool] = lambda _: False,
    ) -> None:
        """`on_success` gets the rollouts whose work succeeded, outside the budget. A worker takes a
        rollout after `gate` has returned, and the rollout's state is `entering` from then on.
        `on_change` is called when a worker has taken a rollout, and when it is done with it.
        `retry` is asked to take those that failed, with their resources released.
        `is_good_enough` decides whether one that used up its budget succeeds all the same."""
        self.stage = stage
        self.workers = workers
        self.running: dict[RolloutRecord, None] = {}
        self._queue = queue
        self._work = work
        self._on_success = on_success
        self._entering = entering
        self._gate = gate
        self._on_change = on_change
        self._retry = retry
        self._is_good_enough = is_good_enough

    async def serve(self) -> None:
        """One worker; run `workers` of them. Ends when cancelled, even if a handler hides that."""
        worker = asyncio.current_task()
        assert worker is not None
        while not worker.cancelling():
            record = await self._queue.get()
            if self._gate is not None:
                await self._gate()
            if not record.cancel_requested:
                await self._process(record)

    async def put(self, record: RolloutRecord) -> None:
        """Waits while the queue is full. A cancelled rollout is ended, by whoever comes first."""
        record.is_waiting = True
        if record.cancel_requested:
            await record.end_if_waiting()
        else:
            await self._queue.put(record)

    def put_nowait(self, record: RolloutRecord) -> None:
        self._queue.put_nowait(record)

    @property
    def waiting(self) -> int:
        return self._queue.qsize()

    def next(self, limit: int) -> Iterable[RolloutRecord]:
        """Of the first `limit` in the queue, those that a worker will work on, in order."""
        return (one for one in islice(self._queue, limit) if not one.cancel_requested)

    async def _process(self, record: RolloutRecord) -> None:
        record.is_waiting = False
        logs.rollout_id.set(record.rollout_id)
        record.move(self._entering)
        self.running[record] = None
        self._on_change()
        try:
            await self._work_and_hand_on(record)
        finally:
            del self.running[record]
            self._on_change()

    async def _work_and_hand_on(self, record: RolloutRecord) -> None:
        with record.timed(self.stage):
            problem = await self._attempt(record)
        if problem is None and not record.cancel_requested:
            await self._on_success(record)
            return
        await record.release()
        if record.cancel_requested:
            record.end(RolloutState.CANCELLED, record.error)
        elif problem is not None and not self._retry(record, problem):
            record.end(RolloutState.FAILED, problem)

    async def _attempt(self, record: RolloutRecord) -> ErrorInfo | None:
        """The boundary to foreign code: agents, sandboxes, engines."""
        work = record.work = asyncio.create_task(
            self._within_budget(record), name=self._name(record)
        )
        try:
            await work
        except asyncio.CancelledError:
            worker = asyncio.current_task()
            if worker is not None and worker.cancelling():
                raise
            if not record.cancel_requested:
                return self._unexpected(RuntimeError("the handler was cancelled from inside"))
        except StageTimeout as error:
            record.finish_reason = FinishReason.TIMEOUT
            return None if self._is_good_enough(record) else error.info(self.stage)
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

    async def _within_budget(self, record: RolloutRecord) -> None:
        """Raises `StageTimeout`, also where the work made another error of the cancellation."""
        budget_s = record.budget_s(self.stage)
        try:
            async with record.clock.deadline(budget_s) as deadline:
                await self._work(record)
        except asyncio.CancelledError:
            raise
        except Exception:
            if deadline.expired():
                raise StageTimeout(self.stage, budget_s, record.waited_for()) from None
            raise
        except BaseException as end:  # the event loop, and the service with it, would end
            stage = self.stage.value.upper()
            raise AgentError(f"the agent's {stage} raised {described(end)}") from end

    def _unexpected(self, error: Exception) -> ErrorInfo:
        return ErrorInfo(
            kind=type(error).__name__,
            blame=STAGE_BLAME[self.stage],
            message=described(error),
            hint="an exception the service does not know; its log has the traceback",
            stage=self.stage,
        )
