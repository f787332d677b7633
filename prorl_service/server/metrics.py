"""`GET /metrics` for Prometheus: counters (`prorl_service.metrics`) and current values."""

from collections.abc import Iterator

from fastapi import APIRouter, Response
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from prorl_service import metrics
from prorl_service.sandbox.warm_pool import WarmPool
from prorl_service.schemas import BackendState, ErrorResponse, RolloutState
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
        yield from self._service_itself()
        yield from self._rollouts()
        yield from self._backends()
        if self._service.sandboxes is not None:
            yield from self._sandboxes(self._service.sandboxes)

    def _service_itself(self) -> Iterator[Metric]:
        service, name = self._service, "prorl"
        is_healthy, is_writable = service.failure() is None, service.journal.failure is None
        version = service.backends.policy_version
        yield GaugeMetricFamily(
            f"{name}_healthy", "1 while the service is healthy, as in `/health`.", is_healthy
        )
        yield GaugeMetricFamily(
            f"{name}_journal_writable", "1 while the journal can be written.", is_writable
        )
        yield GaugeMetricFamily(f"{name}_policy_version", "Version of the newest weights.", version)

    def _rollouts(self) -> Iterator[Metric]:
        executor = self._service.executor
        counts = executor.count_by_state()
        rollouts = GaugeMetricFamily("prorl_rollouts", "Rollouts kept, by state.", labels=["state"])
        for state in RolloutState:
            rollouts.add_metric([state.value], counts.get(state, 0))
        waiting = GaugeMetricFamily("prorl_queue_length", "Rollouts waiting.", labels=["stage"])
        workers = GaugeMetricFamily("prorl_workers", "Workers of a stage.", labels=["stage"])
        for stage, count in executor.queues().items():
            waiting.add_metric([stage], count)
        for stage, count in executor.workers().items():
            workers.add_metric([stage], count)
        yield from (rollouts, waiting, workers)

    def _backends(self) -> Iterator[Metric]:
        name = "prorl_backend"
        in_flight = GaugeMetricFamily(
            f"{name}_calls_in_flight", "Model calls in flight.", labels=["backend"]
        )
        sessions = GaugeMetricFamily(
            f"{name}_sessions", "Rollouts whose calls go to the engine.", labels=["backend"]
        )
        states = GaugeMetricFamily(
            f"{name}_state", "1 for the state that the engine is in.", labels=["backend", "state"]
        )
        versions = GaugeMetricFamily(
            f"{name}_policy_version", "Version of the engine's weights.", labels=["backend"]
        )
        for backend in self._service.backends.statuses():
            in_flight.add_metric([backend.backend_id], backend.in_flight)
            sessions.add_metric([backend.backend_id], backend.sessions)
            versions.add_metric([backend.backend_id], backend.policy_version)
            for state in BackendState:
                states.add_metric([backend.backend_id, state.value], state is backend.state)
        yield from (in_flight, sessions, states, versions)

    def _sandboxes(self, pool: WarmPool) -> Iterator[Metric]:
        counts, name = pool.counts(), "prorl_sandbox"
        yield GaugeMetricFamily(
            f"{name}es_running", "Sandboxes that rollouts hold.", counts["running"]
        )
        yield GaugeMetricFamily(f"{name}es_warm", "Sandboxes started ahead.", counts["warm"])
        yield CounterMetricFamily(
            f"{name}_hits", "Starts that took a sandbox started ahead.", counts["hits"]
        )
        yield CounterMetricFamily(f"{name}_misses", "Starts that found none.", counts["misses"])
