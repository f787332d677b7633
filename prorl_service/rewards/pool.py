"""Runs scoring functions in processes that can be killed: a hang or a bomb costs one answer.

Workers start with the first call and are reused. Memory is limited per worker, time per call.
"""

import asyncio
import logging
import multiprocessing
import resource
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeout
from typing import ParamSpec

from pebble import ProcessExpired, ProcessPool

from prorl_service.errors import EvaluatorError

P = ParamSpec("P")


class ScoringPool:
    def __init__(self, *, workers: int = 2, memory_mb: int = 2048) -> None:
        self._pool = ProcessPool(
            max_workers=workers,
            max_tasks=1000,
            initializer=_prepare_worker,
            initargs=[memory_mb],
            context=multiprocessing.get_context("spawn"),
        )

    async def score(
        self, function: Callable[P, float], timeout_s: float, *args: P.args, **kwargs: P.kwargs
    ) -> float:
        """`function` must be importable by name. Raises `EvaluatorError`."""
        future = self._pool.schedule(function, args=list(args), kwargs=kwargs, timeout=timeout_s)
        try:
            return float(await asyncio.wrap_future(future))
        except FutureTimeout:
            raise EvaluatorError(f"scoring took more than {timeout_s:g} s") from None
        except ProcessExpired as error:
            raise EvaluatorError(f"the scoring process died: {error}") from error
        except Exception as error:  # whatever a scoring function raised over there
            raise EvaluatorError(f"scoring failed: {error!r}") from error

    async def close(self) -> None:
        self._pool.stop()
        await asyncio.to_thread(self._pool.join)


def _prepare_worker(memory_mb: int) -> None:
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # warns that its time limits are off
    limit = memory_mb * 1024 * 1024
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
