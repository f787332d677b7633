"""The dashboard and the alert rules agree with `/metrics`, and Prometheus can read them."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from prorl_service.monitoring import alert_rules, dashboard
from tests.programs import prorl, ran

pytestmark = pytest.mark.processes

SUFFIXES = ("_bucket", "_count", "_sum", "_total")
OF_PROMETHEUS = {"up"}
"""What Prometheus itself says of a service."""

COLUMNS = 24
INSTANCES = 'instance=~"$instance"'
DASHBOARD = json.loads(dashboard())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
[GROUP] = yaml.safe_load(alert_rules("prorl"))["groups"]
RULES = {rule["alert"]: rule["expr"] for rule in GROUP["rules"]}


async def families(url: str) -> set[str]:
    async with httpx.AsyncClient(base_url=url) as http:
        text = (await http.get("/metrics")).text
    return {family.name for family in text_string_to_metric_families(text)}


def queries() -> list[str]:
    """Those of all panels, and of the annotation for new weights."""
    [annotation] = DASHBOARD["annotations"]["list"]
    shown = [target["expr"] for panel in PANELS for target in panel["targets"]]
    return [*shown, annotation["expr"]]


def as_sent(query: str) -> str:
    """Returns the query as Prometheus gets it."""
    sent = query.replace("$instance", ".+")
    return sent.replace("$__rate_interval", "1m").replace("$__interval", "1m")


def metrics_of(query: str) -> set[str]:
    """Families, by the parser's own reading of the query."""
    names = {one.name for one in selectors(promql_parser.parse(query))}
    assert names, query
    return {name.removesuffix(end) for name in names for end in suffix_of(name)}


def suffix_of(name: str) -> list[str]:
    return [next((one for one in SUFFIXES if name.endswith(one)), "")]


def selectors(node: Any) -> Iterator[Any]:
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for child in ("expr", "lhs", "rhs", "vector_selector", "args", "param"):
        below = getattr(node, child, None)
        for one in below if isinstance(below, list) else [below]:
            if one is not None and not isinstance(one, str | float):
                yield from selectors(one)


def rules_file(*arguments: str) -> str:
    return prorl("alerts", *arguments, check=True).stdout


# --- agreement with /metrics --------------------------------------------------------------------


async def test_every_metric_has_a_panel_and_every_panel_its_metrics(url: str) -> None:
    asked = {name for query in queries() for name in metrics_of(as_sent(query))}
    assert asked == await families(url)


async def test_alerts_use_existing_metrics(url: str) -> None:
    asked = {name for expr in RULES.values() for name in metrics_of(expr)}
    assert asked - OF_PROMETHEUS <= await families(url)


async def test_counters_have_a_first_sample_before_anything_happens(url: str) -> None:
    async with httpx.AsyncClient(base_url=url) as http:
        text = (await http.get("/metrics")).text
    for sample in ('ended_total{state="done"}', 'failures_total{blame="sandbox"}'):
        assert f"prorl_rollout{'s_' if sample[0] == 'e' else '_'}{sample}" in text


# --- the dashboard ------------------------------------------------------------------------------


def test_the_command_prints_the_dashboard() -> None:
    assert json.loads(prorl("grafana", check=True).stdout) == DASHBOARD


def test_panels_do_not_overlap_and_fill_their_rows() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= COLUMNS
        assert not cells & taken, panel["title"]
        taken |= cells
    height = max(y for _, y in taken) + 1
    assert len(taken) == COLUMNS * height
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)


def test_each_panel_selects_instances_and_has_a_description() -> None:
    for panel in PANELS:
        assert panel["description"].endswith(".")
    for query in queries():
        braces = re.findall(r"[a-z]\{([^}]*)\}", query)
        assert braces
        assert all(one.startswith(INSTANCES) for one in braces), query


# --- alert rules --------------------------------------------------------------------------------

AT_WORK = 'prorl_rollouts{instance="a",state="running"}'
HEALTHY = 'prorl_backend_state{instance="a",backend="b",state="healthy"}'
QUEUE = 'prorl_queue_length{instance="a",stage="init"}'
ENDED = 'prorl_rollouts_ended_total{instance="a",state="done"}'
FAILED = 'prorl_rollout_failures_total{instance="a",blame="%s"}'
SAMPLED = 'prorl_sampled_tokens_total{instance="a"}'
ENGINE_VERSION = 'prorl_backend_policy_version{instance="a",backend="b"}'
VERSION = 'prorl_policy_version{instance="a"}'
LAG = 'prorl_event_loop_lag_seconds_bucket{instance="a",le="%s"}'
TRACED = 'prorl_traced_rollouts_total{instance="a",outcome="refused"}'
WELL = {
    'up{job="prorl",instance="a"}': "1x40",
    'prorl_healthy{instance="a"}': "1x40",
    'prorl_journal_writable{instance="a"}': "1x40",
    AT_WORK: "8x40",
    HEALTHY: "1x40",
    QUEUE: "100x40",
    ENDED: "0+10x40",
    FAILED % "sandbox": "0x40",
    FAILED % "task": "0+10x40",
    SAMPLED: "0+1000x40",
    ENGINE_VERSION: "1+0x10 2+0x30",
    VERSION: "1+0x9 2+0x30",
    LAG % "0.001": "0+100x40",
    LAG % "1": "0+100x40",
    LAG % "+Inf": "0+100x40",
    'prorl_useless_windows_total{instance="a"}': "0x40",
    TRACED: "0x40",
}
"""Samples of a service that is well, one a minute."""

ILL: dict[str, dict[str, str]] = {
    "ProRLServiceDown": {'up{job="prorl",instance="a"}': "0x40"},
    "ProRLServiceUnhealthy": {'prorl_healthy{instance="a"}': "0x40"},
    "ProRLJournalNotWritable": {'prorl_journal_writable{instance="a"}': "0x40"},
    "ProRLNoHealthyEngine": {HEALTHY: "0x40"},
    "ProRLQueueNotMoving": {ENDED: "7x40", SAMPLED: "99x40", FAILED % "task": "0x40"},
    "ProRLRolloutStuck": {'prorl_oldest_rollout_seconds{instance="a",stage="run"}': "0+600x40"},
    "ProRLRolloutsFail": {FAILED % "sandbox": "0+1x40"},
    "ProRLUselessRollouts": {'prorl_useless_windows_total{instance="a"}': "0x30 1x10"},
    "ProRLWeightsStale": {ENGINE_VERSION: "1x40"},
    "ProRLEventLoopLate": {LAG % "0.001": "0x40"},
    "ProRLTracesLost": {TRACED: "0+1x40"},
}
"""What differs where each alert fires."""


def test_rules_are_for_the_given_job() -> None:
    assert yaml.safe_load(rules_file())["groups"] == [GROUP]
    (group,) = yaml.safe_load(rules_file("--job", "agents"))["groups"]
    assert [rule["alert"] for rule in group["rules"]] == list(RULES)
    assert group["rules"][0]["expr"] == 'up{job="agents"} == 0'


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed: `apt-get install prometheus` brings it")
    return found


def test_prometheus_accepts_the_rules(promtool: str, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yml"
    rules.write_text(rules_file())
    done = ran(promtool, "check", "rules", rules)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(RULES)} rules found" in done.stdout


def test_prometheus_fires_exactly_the_expected_alerts(promtool: str, tmp_path: Path) -> None:
    """Prometheus' own unit tests of rules: a service that is well, and one for each alert."""
    assert ILL.keys() == RULES.keys()
    (tmp_path / "rules.yml").write_text(rules_file())
    tests = [firing({}, None), *(firing(changes, name) for name, changes in ILL.items())]
    file = tmp_path / "tests.yml"
    file.write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "tests": tests}))
    done = ran(promtool, "test", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr


def firing(changes: dict[str, str], expected: str | None) -> dict[str, Any]:
    """A test of promtool's by which `expected` alone fires; None: none does."""
    count = 'count by (alertname) (ALERTS{alertstate="firing",instance="a"})'
    samples = [{"labels": f'{{alertname="{expected}"}}', "value": 1}] if expected else []
    return {
        "name": str(expected),
        "interval": "1m",
        "input_series": [
            {"series": series, "values": values} for series, values in (WELL | changes).items()
        ],
        "promql_expr_test": [{"expr": count, "eval_time": "35m", "exp_samples": samples}],
    }
