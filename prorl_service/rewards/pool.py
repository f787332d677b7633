"""Pool of processes for scoring functions that can be killed: a hang or a bomb costs one answer.

Workers start with the first call and are reused. The kernel limits memory per worker and CPU time
per call, so that even code that never returns to the interpreter cannot outlast them. Unlike
wall-clock time they measure what a call does and not how busy the host is: a call that exceeds
them, or crashes its process, is to blame itself.
"""

import asyncio
import logging
import multiprocessing
import os
import resource
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures.process import BrokenProcessPool
from contextlib import asynccontextmanager
from typing import Any, ParamSpec

from pebble import ProcessExpired, ProcessPool

from prorl_service.errors import EvaluatorError
from prorl_service.utils.budget import WorkClock

P = ParamSpec("P")

KILLED_BY_OTHERS = frozenset({-signal.SIGKILL, -signal.SIGTERM})

FULL = 75
"""Exit code of a worker that has too little memory left to begin a call."""


class ScoringAborted(EvaluatorError):
    """The call used up its CPU time or memory, or crashed its process, due to its arguments."""


class ScoringPool:
    def __init__(self, *, workers: int = 2, memory_mb: int = 2048, cpu_s: int = 5) -> None:
        """`memory_mb` limits each worker, `cpu_s` each call."""
        self._workers = workers
        self._limits = (memory_mb << 20, cpu_s)
        self._pool = self._new_pool()
        self._free = asyncio.Semaphore(workers)

    @asynccontextmanager
    async def worker(self, clock: WorkClock) -> AsyncIterator[None]:
        """Reserves a process for a call of `score`; `clock` does not count the wait for it."""
        with clock.waiting():
            await self._free.acquire()
        try:
            yield
        finally:
            self._free.release()

    async def score(
        self, function: Callable[P, float], timeout_s: float, *args: P.args, **kwargs: P.kwargs
    ) -> float:
        """Calls `function`, which must be importable by name, in a worker.

        `timeout_s` is wall-clock time, waiting excluded. Raises `ScoringAborted` where the
        arguments are to blame, `EvaluatorError` otherwise.
        """
        call = [function, self._limits, args, kwargs]
        while True:
            pool = self._pool
            try:
                future = pool.schedule(_limited, args=call, timeout=timeout_s)
                return await asyncio.wrap_future(future)
            except ProcessExpired as error:
                if error.exitcode != FULL:
                    raise self._why_it_ended(error.exitcode) from None
            except BrokenProcessPool:  # idle workers were killed
                if self._pool is pool:
                    self._pool = self._new_pool()
            except FutureTimeout:
                message = f"scoring took more than {timeout_s:g} s"
                hint = "it used little CPU time: the host is overloaded"
                raise EvaluatorError(message, hint=hint, retryable=True) from None
            except MemoryError:
                raise ScoringAborted("scoring exceeded its memory limit") from None
            except Exception as error:  # raised by the scoring function in its worker
                raise EvaluatorError(f"scoring failed: {error!r}") from error

    async def close(self) -> None:
        """Ends the workers. Calls in flight get no answer."""
        self._pool.stop()
        await asyncio.to_thread(self._pool.join)

    def _new_pool(self) -> ProcessPool:
        return ProcessPool(
            max_workers=self._workers,
            initializer=_prepare_worker,
            initargs=[self._limits[0]],
            context=multiprocessing.get_context("spawn"),
        )

    def _why_it_ended(self, exit_code: int) -> EvaluatorError:
        if exit_code in KILLED_BY_OTHERS:
            return EvaluatorError("the scoring process was killed", retryable=True)
        if exit_code == -signal.SIGXCPU:
            return ScoringAborted(f"scoring took more than {self._limits[1]} s of CPU time")
        return ScoringAborted(f"the scoring process crashed, exit code {exit_code}")


def _prepare_worker(memory_bytes: int) -> None:
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # warns that its time limits are off
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


def _limited(
    function: Callable[..., float],
    limits: tuple[int, int],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> float:
    memory_bytes, cpu_s = limits
    # Caches hold memory that this call may need: a new worker makes the call instead.
    if _held_bytes() > memory_bytes // 2:
        os._exit(FULL)
    # The limit is of the whole process, so it starts from the time used; in whole seconds.
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + cpu_s + 1, hard))
    return float(function(*args, **kwargs))


def _held_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
