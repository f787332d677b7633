"""Alert rules for Prometheus, as a table and as the file that its `rule_files` reads."""

from dataclasses import dataclass
from typing import Any, Literal

import yaml

from prorl_service.monitoring.queries import ACTIVE

OURS = 'blame=~"service|sandbox|backend"'
"""Label matcher for blames that the operator can fix: not the policy, the task or the agent."""

Severity = Literal["critical", "warning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    name: str
    expr: str
    """PromQL expression; `JOB` stands for the job that scrapes the services."""
    lasts: str
    """Duration for which it must hold, in Prometheus' notation."""
    severity: Severity
    summary: str
    description: str
    """Meaning of the alert, and what to do."""


_ON_WORK = f"and on (instance) sum by (instance) (prorl_rollouts{{{ACTIVE}}}) > 0"
"""Restriction to instances with rollouts in flight."""

ALERTS = (
    Alert(
        name="ProRLServiceDown",
        expr='up{job="JOB"} == 0',
        lasts="2m",
        severity="critical",
        summary="{{ $labels.instance }} does not answer",
        description="Prometheus cannot read /metrics. Accepted groups are in the journal: restart "
        "the service with --resume.",
    ),
    Alert(
        name="ProRLServiceUnhealthy",
        expr="prorl_healthy == 0",
        lasts="1m",
        severity="critical",
        summary="A part of {{ $labels.instance }} has died",
        description="`prorl status` and the log say which. Restart the service with --resume.",
    ),
    Alert(
        name="ProRLJournalNotWritable",
        expr="prorl_journal_writable == 0",
        lasts="1m",
        severity="critical",
        summary="{{ $labels.instance }} cannot write its journal",
        description="No group is accepted and no rollout starts until it can. Is the disk full? "
        "The service continues by itself once there is space.",
    ),
    Alert(
        name="ProRLNoHealthyEngine",
        expr='(prorl_healthy unless on (instance) (prorl_backend_state{state="healthy"} == 1)) '
        + _ON_WORK,
        lasts="5m",
        severity="critical",
        summary="{{ $labels.instance }} has rollouts but no healthy engine",
        description="Rollouts wait; their budgets are paused. `prorl status` says what is wrong "
        "with each engine.",
    ),
    Alert(
        name="ProRLQueueNotMoving",
        expr="(sum by (instance) (prorl_queue_length) > 0) "
        "and on (instance) (sum by (instance) (increase(prorl_rollouts_ended_total[15m])) == 0) "
        "and on (instance) (increase(prorl_sampled_tokens_total[15m]) == 0)",
        lasts="5m",
        severity="critical",
        summary="{{ $value }} rollouts are stuck in queues at {{ $labels.instance }}",
        description="No rollout ended and no token was sampled for 15 minutes. `prorl status` "
        "shows engines and queues; was an engine left paused or lent?",
    ),
    Alert(
        name="ProRLRolloutsFail",
        expr=f"sum by (instance, blame) (increase(prorl_rollout_failures_total{{{OURS}}}[15m])) "
        "/ on (instance) group_left () "
        "(sum by (instance) (increase(prorl_rollouts_ended_total[15m])) > 20) > 0.05",
        lasts="5m",
        severity="warning",
        summary="{{ $value | humanizePercentage }} of the rollouts of {{ $labels.instance }} fail, "
        "blame {{ $labels.blame }}",
        description="The log has the reason and stage of each failure; `prorl status` shows the "
        "engines, `prorl doctor` checks sandboxes.",
    ),
    Alert(
        name="ProRLUselessRollouts",
        expr="increase(prorl_useless_windows_total[10m]) > 0",
        lasts="0m",
        severity="warning",
        summary="32 rollouts in a row at {{ $labels.instance }} all failed or sampled nothing",
        description="The log says why the last one failed. Training learns nothing from these.",
    ),
    Alert(
        name="ProRLWeightsStale",
        expr="(prorl_backend_policy_version < on (instance) group_left () prorl_policy_version) "
        'and on (instance, backend) (prorl_backend_state{state="healthy"} == 1)',
        lasts="10m",
        severity="warning",
        summary="{{ $labels.backend }} still serves weights {{ $value }}, 10 minutes after newer "
        "ones arrived",
        description="Its samples are older than the policy. Does its trainer still update it?",
    ),
    Alert(
        name="ProRLEventLoopLate",
        expr="histogram_quantile(0.95, sum by (instance, le) "
        "(rate(prorl_event_loop_lag_seconds_bucket[5m]))) > 0.25",
        lasts="5m",
        severity="warning",
        summary="Timers of {{ $labels.instance }} are {{ $value | humanizeDuration }} late",
        description="A core is saturated, or an agent blocks the event loop; then the log names "
        "its file and line.",
    ),
    Alert(
        name="ProRLTracesLost",
        expr='sum by (instance) (increase(prorl_traced_rollouts_total{outcome!="exported"}[15m])) '
        "> 0",
        lasts="15m",
        severity="warning",
        summary="Traces of {{ $labels.instance }} are lost",
        description="The collector at --otel-endpoint accepts no spans, or too few; the log has "
        "the reason. Rollouts are not affected.",
    ),
)


def rules(job: str) -> str:
    """Returns the file's text."""
    group = {"name": "prorl", "rules": [_rule(one, job) for one in ALERTS]}
    text: str = yaml.safe_dump({"groups": [group]}, sort_keys=False, width=1000)
    return text


def _rule(alert: Alert, job: str) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expr.replace("JOB", job),
        "for": alert.lasts,
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "description": alert.description},
    }
