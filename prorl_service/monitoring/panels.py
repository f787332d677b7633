"""The panels of the dashboard as a table: title, queries, unit, description.

`grafana` turns them into Grafana's JSON.
"""

from prorl_service.monitoring.queries import (
    ACTIVE,
    KEPT,
    RATE,
    Panel,
    Query,
    Row,
    now,
    per_minute,
    per_second,
    quantiles,
)

NOW = Row(
    "Now",
    (
        Panel(
            title="Healthy",
            queries=(Query("min(prorl_healthy{HERE})"),),
            description="No: a part of a service has ended, and `/health` answers 503. "
            "`prorl status` says which.",
            unit="bool_yes_no",
            kind="stat",
            width=4,
            steps=(("red", 0), ("green", 1)),
        ),
        Panel(
            title="Rollouts in flight",
            queries=(Query(f"sum(prorl_rollouts{{HERE,{ACTIVE}}})"),),
            description="Rollouts that were accepted and have not ended, queued ones included.",
            kind="stat",
            width=4,
        ),
        Panel(
            title="Ended a minute",
            queries=(Query("60 * sum(rate(prorl_rollouts_ended_total{HERE}[5m]))"),),
            description="Ended rollouts over the last 5 minutes, whatever their state.",
            kind="stat",
            width=4,
        ),
        Panel(
            title="Failed",
            queries=(
                Query(
                    "sum(increase(prorl_rollout_failures_total{HERE}[15m])) "
                    "/ clamp_min(sum(increase(prorl_rollouts_ended_total{HERE}[15m])), 1)"
                ),
            ),
            description="Failures as a share of the rollouts that ended in the last 15 minutes.",
            unit="percentunit",
            kind="stat",
            width=4,
            steps=(("green", 0), ("orange", 0.01), ("red", 0.05)),
        ),
        Panel(
            title="Healthy engines",
            queries=(Query('sum(prorl_backend_state{HERE,state="healthy"})'),),
            description="Engines that accept calls. Engines that are loading weights do not count.",
            kind="stat",
            width=4,
            steps=(("red", 0), ("green", 1)),
        ),
        Panel(
            title="Policy version",
            queries=(Query("max(prorl_policy_version{HERE})"),),
            description="Newest version of the weights that a service knows.",
            unit="none",
            kind="stat",
            width=4,
        ),
    ),
)

ROLLOUTS = Row(
    "Rollouts",
    (
        Panel(
            title="In flight, by state",
            queries=(now("prorl_rollouts", "state", f",{ACTIVE}"),),
            description="`ready` rollouts hold a sandbox and wait for a worker of RUN; `running` "
            "includes those that wait for EVAL.",
            is_stacked=True,
        ),
        Panel(
            title="Ended a minute",
            queries=(per_minute("prorl_rollouts_ended_total", "state"),),
            description="By final state. A rollout graded 0 is done; a failed one has no reward.",
            is_stacked=True,
        ),
        Panel(
            title="Failures a minute, by blame",
            queries=(per_minute("prorl_rollout_failures_total", "blame"),),
            description="Who is to blame for failed and cancelled rollouts; the log has kind and "
            "stage.",
            is_stacked=True,
        ),
        Panel(
            title="Results kept",
            queries=(now("prorl_rollouts", "state", f",{KEPT}"),),
            description="Ended rollouts of unacknowledged groups. It only grows if a "
            "trainer does not acknowledge.",
            is_stacked=True,
            width=12,
        ),
        Panel(
            title="Useless windows",
            queries=(
                Query(
                    "sum by (instance) (increase(prorl_useless_windows_total{HERE}[1h]))",
                    "{{instance}}",
                ),
            ),
            description="Windows of 32 ended rollouts, in the last hour, that all failed or "
            "sampled nothing.",
            width=12,
        ),
    ),
)

STAGES = Row(
    "Stages",
    (
        Panel(
            title="Waiting for a worker",
            queries=(now("prorl_queue_length", "stage"),),
            description="Rollouts in the queue of each stage. INIT's is the backlog.",
        ),
        Panel(
            title="Time in a stage",
            queries=quantiles("prorl_stage_seconds", "stage"),
            description="INIT opens the sandbox, RUN samples and calls tools, EVAL grades.",
            unit="s",
        ),
        Panel(
            title="Time waited for a worker",
            queries=quantiles("prorl_queue_seconds", "stage"),
            description="Before each stage. RUN's grows when engines are what is scarce, EVAL's "
            "when grading is.",
            unit="s",
        ),
        Panel(
            title="Workers of RUN in use",
            queries=(
                Query(
                    'sum(prorl_rollouts{HERE,state="running"}) '
                    '/ clamp_min(sum(prorl_workers{HERE,stage="run"}), 1)',
                    "in use",
                ),
            ),
            description="Above 1, rollouts wait for EVAL. Far below 1 with rollouts in INIT's "
            "queue, INIT is too slow.",
            unit="percentunit",
            width=12,
        ),
        Panel(
            title="Stages done a second",
            queries=(per_second("prorl_stage_seconds_count", "{{stage}}", "stage"),),
            description="In balance, all three are the same.",
            unit="ops",
            width=12,
        ),
    ),
)

CALLS = Row(
    "Model and tools",
    (
        Panel(
            title="Model calls a second",
            queries=(per_second("prorl_model_call_seconds_count", "calls"),),
            description="Answered calls; each is one turn.",
            unit="reqps",
        ),
        Panel(
            title="Time of a model call",
            queries=quantiles("prorl_model_call_seconds"),
            description="Excludes waits for a slot, for new weights or for an engine.",
            unit="s",
        ),
        Panel(
            title="Tokens a second",
            queries=(
                per_second("prorl_sampled_tokens_total", "sampled"),
                per_second("prorl_prompt_tokens_total", "prompt"),
            ),
            description="Over all calls. A turn's prompt is the whole conversation before it.",
        ),
        Panel(
            title="Prompt tokens that were cached",
            queries=(
                Query(
                    f"sum(rate(prorl_cached_tokens_total{{HERE}}[{RATE}])) "
                    f"/ clamp_min(sum(rate(prorl_prompt_tokens_total{{HERE}}[{RATE}])), 1e-9)",
                    "cached",
                ),
            ),
            description="How well the engines' prefix caches work. It falls when weights are "
            "updated, and when rollouts change engines.",
            unit="percentunit",
            is_share=True,
        ),
        Panel(
            title="Tool calls a second",
            queries=(per_second("prorl_tool_seconds_count", "{{tool}}", "tool"),),
            description="`unknown`: names that the model made up.",
            unit="ops",
        ),
        Panel(
            title="Time of a tool call",
            queries=quantiles("prorl_tool_seconds", "tool"),
            description="Includes the sandbox, or the tool's server.",
            unit="s",
        ),
    ),
)

ENGINES = Row(
    "Engines",
    (
        Panel(
            title="Engines by state",
            queries=(now("prorl_backend_state", "state"),),
            description="`prorl status` says what is wrong with one that is down.",
            is_stacked=True,
        ),
        Panel(
            title="Calls in flight",
            queries=(now("prorl_backend_calls_in_flight", "backend"),),
            description="Calls at each engine. Equal engines should have similar numbers.",
        ),
        Panel(
            title="Rollouts bound to an engine",
            queries=(now("prorl_backend_sessions", "backend"),),
            description="A rollout's calls go to the engine that has its prefix cached.",
        ),
        Panel(
            title="Weights of each engine",
            queries=(
                Query("max by (backend) (prorl_backend_policy_version{HERE})", "{{backend}}"),
                Query("max(prorl_policy_version{HERE})", "newest"),
            ),
            description="An engine that stays behind the newest does not serve, or serves old "
            "weights.",
            unit="none",
            width=12,
        ),
        Panel(
            title="Failovers a minute",
            queries=(Query(f"60 * sum(rate(prorl_failovers_total{{HERE}}[{RATE}]))", "failovers"),),
            description="Calls that failed on one engine and were retried on another with the same "
            "prompt.",
            width=12,
        ),
    ),
)

SANDBOXES = Row(
    "Sandboxes",
    (
        Panel(
            title="Sandboxes",
            queries=(
                Query("sum(prorl_sandboxes_running{HERE})", "held by rollouts"),
                Query("sum(prorl_sandboxes_warm{HERE})", "warm"),
            ),
            description="Warm ones are started ahead of their rollouts (`--warm-sandboxes`).",
            width=12,
        ),
        Panel(
            title="Starts from a warm sandbox",
            queries=(
                Query(
                    f"sum(rate(prorl_sandbox_hits_total{{HERE}}[{RATE}])) / clamp_min("
                    f"sum(rate(prorl_sandbox_hits_total{{HERE}}[{RATE}])) + "
                    f"sum(rate(prorl_sandbox_misses_total{{HERE}}[{RATE}])), 1e-9)",
                    "warm",
                ),
            ),
            description="The others waited for their sandbox to start.",
            unit="percentunit",
            width=12,
            is_share=True,
        ),
    ),
)

PROCESS = Row(
    "Process",
    (
        Panel(
            title="Event-loop lag",
            queries=quantiles("prorl_event_loop_lag_seconds", "instance"),
            description="How late timers are. Tens of milliseconds: a core is full. More: "
            "something blocks the loop, and the log names it.",
            unit="s",
        ),
        Panel(
            title="CPU",
            queries=(
                Query(
                    f"sum by (instance) (rate(process_cpu_seconds_total{{HERE}}[{RATE}]))",
                    "{{instance}}",
                ),
            ),
            description="Cores that the service's own process uses; sandboxes are processes of "
            "their own.",
        ),
        Panel(
            title="Memory",
            queries=(
                Query("sum by (instance) (process_resident_memory_bytes{HERE})", "{{instance}}"),
            ),
            description="Resident memory of the service's own process.",
            unit="bytes",
        ),
        Panel(
            title="Open descriptors",
            queries=(
                Query(
                    "max by (instance) (process_open_fds{HERE} / process_max_fds{HERE})",
                    "{{instance}}",
                ),
            ),
            description="Share of the limit. A sandbox takes a few, an open connection one.",
            unit="percentunit",
            width=6,
            is_share=True,
        ),
        Panel(
            title="Uptime",
            queries=(
                Query(
                    "time() - max by (instance) (process_start_time_seconds{HERE})",
                    "{{instance}}",
                ),
            ),
            description="Falls to 0 with each start of a service.",
            unit="s",
            width=6,
        ),
        Panel(
            title="Journal writable",
            queries=(Query("min by (instance) (prorl_journal_writable{HERE})", "{{instance}}"),),
            description="No: its disk is full or gone. Nothing is accepted, no rollout begins, and "
            "no result is reported.",
            unit="bool_yes_no",
            width=6,
            is_share=True,
        ),
        Panel(
            title="Address space",
            queries=(
                Query("sum by (instance) (process_virtual_memory_bytes{HERE})", "{{instance}}"),
            ),
            description="Reserved, not used; relevant where the system limits it.",
            unit="bytes",
            width=6,
        ),
    ),
)

TRACES = Row(
    "Traces",
    (
        Panel(
            title="Traced rollouts a minute",
            queries=(per_minute("prorl_traced_rollouts_total", "outcome"),),
            description="`refused`: the collector did not take them. `dropped`: they came faster "
            "than they could be sent. Nothing without `--otel-endpoint`.",
            is_stacked=True,
            width=12,
        ),
        Panel(
            title="Spans a second",
            queries=(per_second("prorl_exported_spans_total", "spans"),),
            description="Spans that the collector accepted.",
            unit="ops",
            width=12,
        ),
    ),
)

ROWS = (NOW, ROLLOUTS, STAGES, CALLS, ENGINES, SANDBOXES, PROCESS, TRACES)
