"""Runs scoring functions in processes that can be ended: a hang or a bomb costs one answer.

Workers start with the first call and are reused. What waits is sent to them several calls at a
time, so that none idles while the next is on its way; a worker that is lost takes with it only the
call it was at. Memory is limited per worker, CPU time per call: unlike wall-clock time it tells
what a call does, and not how busy the host is.
"""

import asyncio
import logging
import multiprocessing
import pickle
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing.connection import wait
from threading import Condition, Thread
from typing import ParamSpec

from prorl_service.errors import EvaluatorError
from prorl_service.rewards.pool_worker import Reply, ScoringAborted, Worker

__all__ = ["ScoringAborted", "ScoringPool"]

P = ParamSpec("P")

MAX_BATCH = 16
"""Calls that are sent at a time. A hang delays those behind it."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Call:
    work: bytes
    timeout_s: float
    future: "Future[float]"

    def answer(self, reply: Reply) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        if reply.error is None:
            self.future.set_result(reply.value)
        else:
            self.future.set_exception(reply.error)


class ScoringPool:
    def __init__(self, *, workers: int = 2, memory_mb: int = 2048, cpu_s: int = 5) -> None:
        """`memory_mb` is of each worker, `cpu_s` of each call."""
        self._memory_mb = memory_mb
        self._cpu_s = cpu_s
        self._waiting: deque[_Call] = deque()
        self._changed = Condition()
        self._closing, self._close = multiprocessing.Pipe(duplex=False)
        self._threads = [Thread(target=self._serve, daemon=True) for _ in range(workers)]
        self._started = self._closed = False

    async def score(
        self, function: Callable[P, float], timeout_s: float, *args: P.args, **kwargs: P.kwargs
    ) -> float:
        """`function` must be importable by name. `timeout_s` is wall-clock time, waiting excluded.

        Raises `ScoringAborted` where the arguments are to blame, `EvaluatorError` otherwise.
        """
        call = _Call(pickle.dumps((function, args, kwargs)), timeout_s, Future())
        with self._changed:
            if self._closed:
                raise EvaluatorError("the scoring pool is closed")
            if not self._started:
                self._started = True
                for thread in self._threads:
                    thread.start()
            self._waiting.append(call)
            self._changed.notify()
        return await asyncio.wrap_future(call.future)

    async def close(self) -> None:
        """What has no answer yet is cancelled."""
        with self._changed:
            self._closed = True
            self._close.close()
            self._changed.notify_all()
        if self._started:
            await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in self._threads))
        for call in self._waiting:
            call.future.cancel()

    def _serve(self) -> None:
        """The work of a thread: to keep one worker busy."""
        worker: Worker | None = None
        while calls := self._take():
            # It may have been killed while it had nothing to do.
            if worker is not None and not worker.is_alive:
                worker.end()
                worker = None
            try:
                worker = worker or Worker(self._memory_mb, self._cpu_s)
                is_lost = self._perform(calls, worker)
            except OSError as error:  # no process, or no memory, left to be had
                reply = Reply(error=EvaluatorError(f"no scoring process: {error}", retryable=True))
                calls.popleft().answer(reply)
                is_lost = True
            if is_lost and worker is not None:
                worker.end()
                worker = None
            with self._changed:
                self._waiting.extendleft(reversed(calls))
        if worker is not None:
            worker.end()

    def _take(self) -> deque[_Call]:
        """A share of what waits; nothing when the pool is closed."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return deque()
                share = min(MAX_BATCH, -(-len(self._waiting) // len(self._threads)))
                calls = [self._waiting.popleft() for _ in range(share)]
                if wanted := [call for call in calls if not call.future.cancelled()]:
                    return deque(wanted)

    def _perform(self, calls: deque[_Call], worker: Worker) -> bool:
        """Answers calls and removes them; whether it stopped because the worker is lost."""
        worker.send([call.work for call in calls])
        while calls:
            wait([worker.connection, self._closing], calls[0].timeout_s)
            if self._closed:
                return True
            reply = worker.reply(calls[0].timeout_s)
            calls.popleft().answer(reply)
            if reply.is_last:
                return True
        return False
