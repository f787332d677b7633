"""Alert rules for Prometheus, as a table and as the file that its `rule_files` reads."""

from dataclasses import dataclass
from typing import Any, Literal

import yaml

from prorl_service.monitoring.queries import ACTIVE

OURS = 'blame=~"service|sandbox|backend"'
"""Blames that are the operator's affair: not the policy's, the task's or the agent's."""

Severity = Literal["critical", "warning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    name: str
    expr: str
    """`JOB` stands for the name of the job that scrapes the services."""
    lasts: str
    """How long it must hold, in Prometheus' own form."""
    severity: Severity
    summary: str
    description: str
    """What it means, and what to do."""


_ON_WORK = f"and on (instance) sum by (instance) (prorl_rollouts{{{ACTIVE}}}) > 0"
"""Where there is something to do."""

ALERTS = (
    Alert(
        name="ProRLServiceDown",
        expr='up{job="JOB"} == 0',
        lasts="2m",
        severity="critical",
        summary="{{ $labels.instance }} does not answer",
        description="Prometheus cannot read /metrics. What was accepted is in the journal: start "
        "the service again with --resume.",
    ),
    Alert(
        name="ProRLServiceUnhealthy",
        expr="prorl_healthy == 0",
        lasts="1m",
        severity="critical",
        summary="A part of {{ $labels.instance }} has ended",
        description="`prorl status` and the log say which. Start the service again with --resume.",
    ),
    Alert(
        name="ProRLJournalNotWritable",
        expr="prorl_journal_writable == 0",
        lasts="1m",
        severity="critical",
        summary="{{ $labels.instance }} cannot write its journal",
        description="Nothing is accepted and no rollout begins until it can. Is the disk full? The "
        "service goes on by itself when there is room.",
    ),
    Alert(
        name="ProRLNoHealthyEngine",
        expr='(prorl_healthy unless on (instance) (prorl_backend_state{state="healthy"} == 1)) '
        + _ON_WORK,
        lasts="5m",
        severity="critical",
        summary="{{ $labels.instance }} has rollouts and no engine that serves",
        description="Rollouts wait, and their budgets stand still. `prorl status` says what is "
        "wrong with each engine.",
    ),
    Alert(
        name="ProRLQueueNotMoving",
        expr="(sum by (instance) (prorl_queue_length) > 0) "
        "and on (instance) (sum by (instance) (increase(prorl_rollouts_ended_total[15m])) == 0) "
        "and on (instance) (increase(prorl_sampled_tokens_total[15m]) == 0)",
        lasts="5m",
        severity="critical",
        summary="{{ $value }} rollouts wait at {{ $labels.instance }}, and nothing happens",
        description="No rollout has ended and no token was sampled for 15 minutes. `prorl status` "
        "shows engines and queues; is an engine paused or lent for good?",
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
        description="The log has reason and stage of failed rollouts; `prorl status` has the state "
        "of the engines, `prorl doctor` that of the sandboxes.",
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
        summary="{{ $labels.backend }} has served weights {{ $value }} for 10 minutes after newer "
        "came",
        description="What it samples is older than the policy. Does its trainer still update it?",
    ),
    Alert(
        name="ProRLEventLoopLate",
        expr="histogram_quantile(0.95, sum by (instance, le) "
        "(rate(prorl_event_loop_lag_seconds_bucket[5m]))) > 0.25",
        lasts="5m",
        severity="warning",
        summary="Timers of {{ $labels.instance }} are {{ $value | humanizeDuration }} late",
        description="A core is full, or an agent blocks the event loop: then the log names its "
        "file and line.",
    ),
    Alert(
        name="ProRLTracesLost",
        expr='sum by (instance) (increase(prorl_traced_rollouts_total{outcome!="exported"}[15m])) '
        "> 0",
        lasts="15m",
        severity="warning",
        summary="Traces of {{ $labels.instance }} are lost",
        description="The collector at --otel-endpoint takes no spans, or fewer than come: the log "
        "has the reason. Rollouts are not affected.",
    ),
)


def rules(job: str) -> str:
    """The file's text."""
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
