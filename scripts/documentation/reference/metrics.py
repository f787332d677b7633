"""`docs/reference/metrics.md`: every metric, out of the service's own counters and gauges."""

import asyncio
from collections.abc import Iterator
from typing import Any

from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric

from prorl_service import metrics
from prorl_service.agents.registry import AgentRegistry
from prorl_service.sandbox.base import ToolResult
from prorl_service.server.metrics import Current
from prorl_service.testing import FakeSandboxes
from prorl_service.testing.trial import trial_service

Row = tuple[str, str, Any, str]
"""Name, type, labels and documentation of a metric."""
INTRODUCTION = """\
# Metrics

`GET /metrics` has these in Prometheus' text format, and the usual `process_*`. A counter's samples
end in `_total`, a histogram's in `_bucket`, `_sum` and `_count`.
[Operations](../operations.md#what-it-tells-prometheus) says which to watch. `prorl grafana` prints
a dashboard, and `prorl alerts` rules for alerts.

| metric | type | labels | |
|---|---|---|---|
"""


def page() -> str:
    counted: list[Row] = [
        (one._name, str(one._type), one._labelnames, one._documentation)
        for one in vars(metrics).values()
        if isinstance(one, MetricWrapperBase)
    ]
    now: list[Row] = [
        (str(one.name), str(one.type), getattr(one, "_labelnames", ()), one.documentation)
        for one in asyncio.run(_current())
    ]
    return INTRODUCTION + "\n".join(map(_row, sorted(counted + now))) + "\n"


def _row(metric: Row) -> str:
    name, kind, labels, said = metric
    total = "_total" if kind == "counter" else ""
    shown = ", ".join(f"`{label}`" for label in labels)
    return f"| `{name}{total}` | {kind} | {shown} | {said} |"


async def _current() -> list[Metric]:
    """Returns the metrics of a service that has nothing to do."""
    sandboxes = FakeSandboxes(lambda name, arguments: ToolResult(""))
    async with trial_service(AgentRegistry(), [], provider=sandboxes) as service:
        return list(_families(Current(service)))


def _families(current: Current) -> Iterator[Metric]:
    yield from current.collect()
