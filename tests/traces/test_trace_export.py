"""A collector that is slow, full, down or wants a key, and options that cannot work."""

import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from prorl_service import metrics
from prorl_service.client import AsyncRolloutClient
from prorl_service.metrics import TraceOutcome
from prorl_service.schemas import BackendSpec, RolloutState
from prorl_service.server.settings import TraceOptions
from prorl_service.testing import StubEngine
from prorl_service.traces import export
from tests.server.application import Settings, finished, serving, until
from tests.traces.agents import TELLING, telling
from tests.traces.collector import Collector
from tests.traces.conftest import service

pytestmark = pytest.mark.processes

NEVER_MS = "3600000"
"""Delay of the processor by which nothing is exported before the service's end."""


@asynccontextmanager
async def traced(engine: StubEngine, collector: Collector) -> AsyncIterator[AsyncRolloutClient]:
    """Client of a service in this process that sends its traces to `collector`."""
    settings = Settings(
        backends=(BackendSpec(url=engine.url),),
        sandbox="process",
        agents=(TELLING,),
        traces=TraceOptions(otel_endpoint=collector.url, otel_content=True),
    )
    async with serving(settings) as url, AsyncRolloutClient(url) as client:
        yield client


@pytest.fixture
def grown() -> Callable[[TraceOutcome], float]:
    """Rollouts with an outcome since the test began."""

    def now(outcome: TraceOutcome) -> float:
        labels = {"outcome": outcome.value}
        name = "prorl_traced_rollouts_total"
        return metrics.REGISTRY.get_sample_value(name, labels) or 0.0

    before = {one: now(one) for one in TraceOutcome}
    return lambda outcome: now(outcome) - before[outcome]


Grown = Callable[[TraceOutcome], float]


def warnings_of(log: Path) -> list[str]:
    return [line for line in log.read_text().splitlines() if "does not accept spans" in line]


# --- trouble ------------------------------------------------------------------------------------


async def test_a_collector_that_is_down_costs_spans_and_one_line(
    engine: StubEngine, tmp_path: Path, collector: Collector
) -> None:
    """Errors in the log would fail the test."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        async with (
            service(engine, tmp_path, "--otel-endpoint", address) as running,
            AsyncRolloutClient(running.url) as client,
        ):
            for number in range(5):
                rollouts = await finished(client, telling(f"g{number}", n=4))
                assert {one.state for one in rollouts} == {RolloutState.DONE}

            async def has_warned() -> bool:
                return bool(warnings_of(running.log))

            await until(has_warned)
    (line,) = warnings_of(tmp_path / "service.log")
    assert re.search(r"WARNING .*/v1/traces does not accept spans; those of \d+ rollouts", line)
    assert "refused" in line


async def test_a_hung_collector_does_not_hold_up_the_end_of_a_service(
    engine: StubEngine, tmp_path: Path, collector: Collector
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with (
            service(engine, tmp_path, "--otel-endpoint", address) as running,
            AsyncRolloutClient(running.url) as client,
        ):
            await finished(client, telling("g", n=4))
            await asyncio.to_thread(running.stop)
    assert running.process.returncode == -15  # its own end, and not that of a kill


async def test_a_collector_that_comes_back_gets_later_spans(
    engine: StubEngine, tmp_path: Path, collector: Collector, grown: Grown
) -> None:
    collector.status = 400
    async with traced(engine, collector) as client:
        await finished(client, telling("lost"))

        async def is_refused() -> bool:
            return grown(TraceOutcome.REFUSED) == 1

        await until(is_refused)
        collector.status = 200
        await finished(client, telling("g"))
        await asyncio.to_thread(collector.wait_for, 1)
    assert [one.attributes["prorl.group_id"] for one in collector.roots()] == ["g"]
    assert (grown(TraceOutcome.REFUSED), grown(TraceOutcome.EXPORTED)) == (1, 1)


async def test_a_full_queue_drops_whole_rollouts_and_counts_them(
    engine: StubEngine, collector: Collector, grown: Grown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", NEVER_MS)
    monkeypatch.setattr(export, "QUEUE_ROLLOUTS", 2)
    monkeypatch.setattr(export, "BATCH_ROLLOUTS", 2)
    with monkeypatch.context() as held:
        held.setattr(BatchSpanProcessor, "on_end", lambda _, span: waiting.append(span))
        waiting: list[export.PendingRollout] = []
        async with traced(engine, collector) as client:
            rollouts = await finished(client, telling("g", n=5))
    assert {one.state for one in rollouts} == {RolloutState.DONE}
    assert len(waiting) == 2
    assert grown(TraceOutcome.DROPPED) == 3


async def test_the_queue_is_bounded_in_bytes_too(
    engine: StubEngine, collector: Collector, grown: Grown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "QUEUE_BYTES", 1)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", NEVER_MS)
    async with traced(engine, collector) as client:
        await finished(client, telling("g", n=3))
        assert grown(TraceOutcome.DROPPED) == 2
    assert len(collector.roots()) == 1


async def test_rollouts_that_ended_before_a_stop_are_exported(
    engine: StubEngine, collector: Collector, grown: Grown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", NEVER_MS)
    async with traced(engine, collector) as client:
        await finished(client, telling("g", n=6))
        assert collector.spans == []
    assert len(collector.roots()) == grown(TraceOutcome.EXPORTED) == 6


# --- requests -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "value"), [("REQUEST_SPANS", 2), ("REQUEST_BYTES", 10_000)])
async def test_large_trees_go_in_several_requests(
    limit: str,
    value: int,
    engine: StubEngine,
    collector: Collector,
    grown: Grown,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(export, limit, value)
    call = {"name": "bash", "output": "x" * 8_000}
    async with traced(engine, collector) as client:
        await finished(client, telling("g", call=call))
        await asyncio.to_thread(collector.wait_for, 1)

        async def is_counted() -> bool:
            return grown(TraceOutcome.EXPORTED) == 1

        await until(is_counted)
    assert len(collector.sizes) > 1
    assert len(collector.spans) == 6
    by_id = {one.span_id for one in collector.spans}
    assert sum(one.parent_id not in by_id for one in collector.spans) == 1


async def test_opentelemetrys_variables_apply_and_keys_leave_the_environment(
    engine: StubEngine, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=secret")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "rollouts of mine")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "cluster=north")
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "5")
    async with traced(engine, collector) as client:
        assert "OTEL_EXPORTER_OTLP_HEADERS" not in os.environ
        await finished(client, telling("g"))
        await asyncio.to_thread(collector.wait_for, 1)
    assert collector.headers[0]["x-key"] == "secret"
    assert collector.resource["service.name"] == "rollouts of mine"
    assert collector.resource["cluster"] == "north"
    assert collector.roots()[0].attributes["gen_ai.operation.name"] == "invok"


# --- options ------------------------------------------------------------------------------------


def refusal(*options: str, before: str = "") -> list[str]:
    """What a service that cannot start says. `before`: a program to be run in it first."""
    program = f"{before}\nfrom prorl_service.cli.main import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", program, "serve", "--journal", "none", *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    return done.stderr.splitlines()


def test_without_the_extra_the_option_says_what_to_install() -> None:
    absent = "import sys\nsys.modules['opentelemetry.sdk'] = None"
    said = refusal("--otel-endpoint", "http://localhost:4318", before=absent)
    assert said[0].startswith("prorl: traces need what is not installed: ")
    assert said[1].strip() == "pip install 'prorl-service[otel]'"


@pytest.mark.parametrize("url", ["localhost:4318", "http://", "grpc://a:4317", "http://u:p@a:1"])
def test_an_invalid_collector_url_is_refused_and_not_shown(url: str) -> None:
    said = refusal("--otel-endpoint", url)
    assert said[0].startswith("prorl: --otel-endpoint: it is no URL of a collector; write it as")
    assert "u:p" not in "\n".join(said)


@pytest.mark.parametrize("options", [["--otel-content"], ["--otel-sample", "0.1"]])
def test_trace_options_require_a_collector(options: list[str]) -> None:
    (problem,) = refusal(*options)
    assert problem == "prorl: traces need a collector: --otel-endpoint http://host:4318"


@pytest.mark.parametrize(
    "given",
    ["http://a:4318", "http://a:4318/", "http://a:4318/v1/traces", "http://a:4318/v1/traces/"],
)
def test_the_route_is_added_unless_the_url_has_it(given: str) -> None:
    assert TraceOptions(otel_endpoint=given).url() == "http://a:4318/v1/traces"


async def test_the_sdk_can_be_disabled_by_its_variable(
    engine: StubEngine, collector: Collector, grown: Grown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    async with traced(engine, collector) as client:
        await finished(client, telling("g"))
    assert not any(grown(outcome) for outcome in TraceOutcome)


def test_a_service_without_traces_does_not_import_opentelemetrys_sdk() -> None:
    program = (
        "import sys, prorl_service.server.compose, prorl_service.client\n"
        "sys.exit(' '.join(one for one in sys.modules if one.startswith('opentelemetry.sdk')) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], timeout=120, check=False)
    assert done.returncode == 0
