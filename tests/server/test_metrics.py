"""Metrics for Prometheus, lines in the log for an operator, and lines of the JSON log."""

import json
import logging
import sys

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from prorl_service import metrics
from prorl_service.client import AsyncRolloutClient
from prorl_service.rollouts.inflight import MAX_WARNINGS
from prorl_service.schemas import Blame, ErrorInfo, RolloutState
from prorl_service.testing import StubEngine
from prorl_service.utils import logs
from tests.server.application import finished, group


async def samples(url: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    async with httpx.AsyncClient(base_url=url) as http:
        text = (await http.get("/metrics")).text
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


@pytest.mark.processes
async def test_ended_rollouts_are_counted_in_the_metrics(
    client: AsyncRolloutClient, url: str, engine: StubEngine
) -> None:
    before = await samples(url)
    rollouts = await finished(client, group(n=3))
    engine.generate_status = 500
    (failed,) = await finished(client, group("failed"))
    assert failed.state is RolloutState.FAILED
    after = await samples(url)

    def grown(name: str, **labels: str) -> float:
        return after[key(name, **labels)] - before.get(key(name, **labels), 0.0)

    assert grown("prorl_rollouts_ended_total", state="done") == 3
    assert grown("prorl_rollout_failures_total", blame="backend") == 1
    assert after[key("prorl_rollouts", state="done")] == 3
    assert grown("prorl_tool_seconds_count", tool="bash") == 3
    for stage in ("init", "run", "eval"):
        assert grown("prorl_stage_seconds_count", stage=stage) >= 3
        assert grown("prorl_queue_seconds_count", stage=stage) >= 3
    segments = [one for r in rollouts if r.trajectory for one in r.trajectory.segments]
    assert grown("prorl_sampled_tokens_total") == sum(sum(one.loss_mask) for one in segments)
    assert grown("prorl_prompt_tokens_total") > 0
    backend = engine.url.removeprefix("http://")
    assert key("prorl_backend_state", backend=backend, state="healthy") in after
    assert after[key("prorl_backend_calls_in_flight", backend=backend)] == 0
    assert after[key("process_resident_memory_bytes")] > 0
    assert key("prorl_event_loop_lag_seconds_count") in after


def test_a_window_of_useless_rollouts_raises_an_alarm(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def alarms() -> float:
        return metrics.REGISTRY.get_sample_value("prorl_useless_windows_total") or 0.0

    problem = ErrorInfo(kind="E", blame=Blame.SANDBOX, message="no room")
    metrics._window = metrics._Window()
    before = alarms()
    for _ in range(metrics.WINDOW):
        metrics.rollout_ended(RolloutState.CANCELLED, None, sampled=False)
    assert alarms() == before
    for number in range(metrics.WINDOW):
        metrics.rollout_ended(RolloutState.DONE, None, sampled=number == 0)
    assert alarms() == before
    for _ in range(metrics.WINDOW):
        metrics.rollout_ended(RolloutState.FAILED, problem, sampled=True)
    assert alarms() == before + 1
    assert "blame sandbox: no room" in caplog.text


def test_a_line_of_json_has_the_rollout_and_the_traceback() -> None:
    logs.rollout_id.set("g.0")
    try:
        raise KeyError("oops")
    except KeyError:
        record = logging.LogRecord("n", logging.ERROR, "f", 1, "it %s", ("broke",), sys.exc_info())
    line = json.loads(logs.JsonLines().format(record))
    assert (line["level"], line["message"], line["rollout_id"]) == ("error", "it broke", "g.0")
    assert "KeyError: 'oops'" in line["traceback"]
    assert line["time"].endswith("Z")


@pytest.mark.processes
async def test_an_ended_group_is_one_line(
    client: AsyncRolloutClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "prorl_service.rollouts.inflight")
    await finished(client, group("g", n=2))
    (record,) = (one for one in caplog.records if one.message.startswith("group "))
    assert record.message.startswith("group g: 2 done, reward 1.00 to 1.00 (mean 1.00), 2.0 turns,")


@pytest.mark.processes
async def test_warnings_of_failed_rollouts_are_limited(
    client: AsyncRolloutClient, caplog: pytest.LogCaptureFixture
) -> None:
    count = MAX_WARNINGS + 20
    await finished(client, group("late", n=count, init_timeout_s=1e-6))
    warnings = [one for one in caplog.records if one.message.startswith("rollout late.")]
    assert 1 <= len(warnings) < count
    assert all(one.levelno == logging.WARNING for one in warnings)
    assert "failed in INIT, blame " in warnings[0].message
    assert "INIT did not finish within 1e-06 s" in warnings[0].message
