"""Samples of the service's load, taken from its counters alone: no engine is asked, no rollout is
looked at. `shelf.history` keeps them."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

from prorl_service.schemas import BackendStatus, RolloutState, Stage
from prorl_service.schemas.history import Load
from prorl_service.schemas.numbers import mean_of
from prorl_service.server import watchdog
from prorl_service.server.service import Service
from prorl_service.shelf import history


@dataclass(frozen=True, slots=True)
class _Readings:
    """Counters, each since the start of what it counts, and when they were read."""

    at: float
    """Monotonic time in seconds."""
    ended: int
    failed: int
    sampled: Mapping[str, int]
    """Tokens, by engine."""


async def keep_samples(service: Service) -> None:
    """Runs as long as the service."""
    before = _readings(service, service.backends.statuses())
    while True:
        await asyncio.sleep(history.SAMPLE_S)
        engines = service.backends.statuses()
        now = _readings(service, engines)
        load = _rates(before, now) | _gauges(service, engines)
        if service.sandboxes is None:
            load[Load.SAMPLED] = None
        await service.history.add_sample(time.time(), load)
        before = now


def _readings(service: Service, engines: list[BackendStatus]) -> _Readings:
    ends = service.executor.inflight.ends
    sampled = {one.backend_id: one.sampled_tokens for one in engines}
    return _Readings(time.monotonic(), ends.total(), ends[RolloutState.FAILED], sampled)


def _rates(before: _Readings, now: _Readings) -> dict[Load, float | None]:
    took_s = now.at - before.at
    # An engine that was added again counts from 0.
    sampled = sum(
        max(0, count - before.sampled.get(name, 0)) for name, count in now.sampled.items()
    )
    return {
        Load.ENDED: (now.ended - before.ended) / took_s,
        Load.FAILED: (now.failed - before.failed) / took_s,
        Load.SAMPLED: sampled / took_s,
    }


def _gauges(service: Service, engines: list[BackendStatus]) -> dict[Load, float | None]:
    running, queues = service.executor.running(), service.executor.queues()
    told = [one.gauges for one in engines if one.gauges is not None]
    return {
        Load.INIT_RUNNING: running.get(Stage.INIT),
        Load.RUN_RUNNING: running.get(Stage.RUN),
        Load.EVAL_RUNNING: running.get(Stage.EVAL),
        Load.INIT_QUEUED: queues.get(Stage.INIT),
        Load.RUN_QUEUED: queues.get(Stage.RUN),
        Load.EVAL_QUEUED: queues.get(Stage.EVAL),
        Load.CALLS: sum(one.in_flight for one in engines),
        Load.CALLS_WAITING: sum(one.waiting for one in told) if told else None,
        Load.CACHE_USE: mean_of(one.kv_use for one in told if one.kv_tokens),
        Load.LAG: watchdog.recent_lag_s(),
    }
