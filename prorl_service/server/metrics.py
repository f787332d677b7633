"""`GET /metrics` for Prometheus: counters (`prorl_service.metrics`) and current values."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from fastapi import APIRouter, Response
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from prorl_service import metrics
from prorl_service.schemas import (
    BackendState,
    BackendStatus,
    CacheStatus,
    ErrorResponse,
    RolloutState,
)
from prorl_service.server.service import Service, ServiceDep

metrics_router = APIRouter(tags=["Service"], responses={"4XX": {"model": ErrorResponse}})


@metrics_router.get(
    "/metrics",
    summary="Get metrics for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def get_metrics(service: ServiceDep) -> Response:
    """Answers in Prometheus text format. Requires the token, if there is one."""
    now = CollectorRegistry()
    now.register(Current(service))
    ProcessCollector(registry=now)
    text = generate_latest(metrics.REGISTRY) + generate_latest(now)
    return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)


class Current(Collector):
    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        service, executor = self._service, self._service.executor
        yield _gauge(
            "healthy", "1 while the service is healthy, as in `/health`.", service.failure() is None
        )
        yield _gauge(
            "journal_writable",
            "1 while the journal can be written.",
            service.journal.failure is None,
        )
        yield _gauge(
            "policy_version", "Version of the newest weights.", service.backends.policy_version
        )
        states = dict.fromkeys(RolloutState, 0) | executor.inflight.count_by_state()
        yield _gauges("rollouts", "Rollouts kept, by state.", "state", states.items())
        yield _gauges("queue_length", "Rollouts waiting.", "stage", executor.queues().items())
        yield _gauges("workers", "Workers of a stage.", "stage", executor.workers().items())
        about = "Seconds that the oldest unfinished rollout has been in its stage, by stage."
        yield _gauges("oldest_rollout_seconds", about, "stage", executor.oldest_s().items())
        about = "Bytes of the service's files."
        yield _gauges("disk_bytes", about, "file", _disk(service))
        yield from _engines(service.backends.statuses())
        if service.sandboxes is not None:
            yield from _cache(service.backends.cache.status())
            yield from _sandboxes(service.sandboxes.counts())


def _disk(service: Service) -> Iterator[tuple[str, int]]:
    """Yields what the service keeps, and its bytes on disk."""
    shelf, journal = service.lists.shelf, service.journal.path
    if journal is not None:
        yield "journal", _size((journal, journal.with_name(f"{journal.name}-wal")))
    if shelf is not None:
        yield "shelf", shelf.status().bytes
    yield "weights", _size(service.backends.spool_directory.glob("*"))


def _size(files: Iterable[Path]) -> int:
    total = 0
    for file in files:
        with suppress(FileNotFoundError):
            total += file.stat().st_size
    return total


def _engines(engines: Sequence[BackendStatus]) -> Iterator[Metric]:
    calls = [(one.backend_id, one.in_flight) for one in engines]
    yield _gauges("backend_calls_in_flight", "Model calls in flight.", "backend", calls)
    sessions = [(one.backend_id, one.sessions) for one in engines]
    about = "Rollouts whose calls go to the engine."
    yield _gauges("backend_sessions", about, "backend", sessions)
    versions = [(one.backend_id, one.policy_version) for one in engines]
    about = "Version of the engine's weights."
    yield _gauges("backend_policy_version", about, "backend", versions)
    about = "1 for the state that the engine is in."
    states = GaugeMetricFamily("prorl_backend_state", about, labels=["backend", "state"])
    for one in engines:
        for state in BackendState:
            states.add_metric([one.backend_id, state.value], state is one.state)
    yield states
    yield from _told(engines)


def _told(engines: Sequence[BackendStatus]) -> Iterator[Metric]:
    """Yields what engines say of themselves; those that say nothing have no values."""
    told = [(one.backend_id, one.gauges) for one in engines if one.gauges is not None]
    sizes = [(name, one.kv_tokens) for name, one in told if one.kv_tokens is not None]
    yield _gauges("backend_kv_tokens", "Tokens that its KV cache holds.", "backend", sizes)
    uses = [(name, one.kv_use) for name, one in told]
    yield _gauges("backend_kv_use", "Share of the cache that calls use.", "backend", uses)
    waiting = [(name, one.waiting) for name, one in told]
    yield _gauges("backend_waiting", "Calls that wait within the engine.", "backend", waiting)
    about = "Calls that the engine began again for want of cache."
    preemptions = CounterMetricFamily("prorl_backend_preemptions", about, labels=["backend"])
    about = "Calls whose times the engine has added up."
    calls = CounterMetricFamily("prorl_backend_timed_calls", about, labels=["backend"])
    about = "Time of these calls within the engine, by phase."
    seconds = CounterMetricFamily("prorl_backend_seconds", about, labels=["backend", "phase"])
    for name, gauges in told:
        preemptions.add_metric([name], gauges.preemptions)
        calls.add_metric([name], gauges.timed_calls)
        for field, sum_s in gauges.times or ():
            seconds.add_metric([name, field.removesuffix("_s")], sum_s)
    yield from (preemptions, calls, seconds)


def _cache(cache: CacheStatus | None) -> Iterator[Metric]:
    """Yields the admission by the engines' cache; without values while it is off."""
    tokens, rollouts = dict[str, int](), dict[str, int]()
    if cache is not None:
        tokens = {"budget": cache.budget_tokens, "expected": cache.expected_tokens}
        rollouts = {"admitted": cache.admitted, "held": cache.held, "waiting": cache.waiting}
    about = "Tokens of the engines' KV caches: the budget, and what admitted rollouts should need."
    yield _gauges("cache_tokens", about, "of", tokens.items())
    about = "Rollouts in the line for the engines' caches."
    yield _gauges("cache_rollouts", about, "state", rollouts.items())


def _sandboxes(counts: Mapping[str, int]) -> Iterator[Metric]:
    yield _gauge("sandboxes_running", "Sandboxes that rollouts hold.", counts["running"])
    yield _gauge("sandboxes_warm", "Sandboxes started ahead.", counts["warm"])
    about = "Starts that took a sandbox started ahead."
    yield CounterMetricFamily("prorl_sandbox_hits", about, counts["hits"])
    yield CounterMetricFamily("prorl_sandbox_misses", "Starts that found none.", counts["misses"])


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(f"prorl_{name}", about, value)


def _gauges(name: str, about: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    """Returns a gauge with a value for each value of its label."""
    family = GaugeMetricFamily(f"prorl_{name}", about, labels=[label])
    for key, value in values:
        family.add_metric([key], value)
    return family
