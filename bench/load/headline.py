"""The figures of a run that are quoted, out of its rows.

CPU is the host's: of the agents' process and of all that it starts, sandboxes and commands. Of the
process alone it is in what begins with `agent_process`. Ratios are ours over theirs, with sandboxes
of processes, which isolate as little as the others do, unless they name another kind. `best_peer`
is the one with the least CPU of those that can be installed; the loop of mini-swe-agent around a
model client written here, the least that can be made of it, has a ratio of its own.
`wall_overhead` is the share by which a batch takes longer than the engine needs. The engine takes
1 s a call, as models do; with 100 ms the commands alone keep two cores busy for longer than that,
whoever runs them.
"""

from collections.abc import Callable, Sequence

FLOOR = "floor"
OURS = "ours, process"
BUBBLEWRAP = "ours, bubblewrap"
APPTAINER = "ours, apptainer"
THIN = "mini-swe-agent, thin model"
LITELLM = "mini-swe-agent, LiteLLM"
VERIFIERS = "verifiers"

BUSY = 64
LATENCY_MS, THINKING_LATENCY_MS = 100, 1000


def headline(rows: Sequence[dict[str, object]]) -> dict[str, object]:
    def figure(who: str, column: str, at_once: int = BUSY, latency_ms: int = LATENCY_MS) -> float:
        wanted = {"who": who, "at_once": at_once, "latency_ms": latency_ms}
        (row,) = (row for row in rows if wanted.items() <= row.items())
        return float(str(row[column]))

    def own_cpu(who: str) -> float:
        return figure(who, "cpu_ms")

    def host_cpu(who: str) -> float:
        return own_cpu(who) + figure(who, "children_ms")

    def wall_overhead(who: str, latency_ms: int) -> float:
        return figure(who, "wall_overhead", latency_ms=latency_ms)

    def ratio(cpu: Callable[[str], float], who: str, other: str) -> float:
        return round(cpu(who) / cpu(other), 3)

    best_peer = min((LITELLM, VERIFIERS), key=host_cpu)
    kinds = (BUBBLEWRAP, APPTAINER)
    return {
        "cpu_ms_per_turn_at_64": round(host_cpu(OURS), 3),
        "floor_cpu_ratio": ratio(host_cpu, OURS, FLOOR),
        **{f"floor_cpu_ratio_{_slug(who)}": ratio(host_cpu, who, FLOOR) for who in kinds},
        "best_peer_cpu_ratio": ratio(host_cpu, OURS, best_peer),
        **{f"best_peer_cpu_ratio_{_slug(who)}": ratio(host_cpu, who, best_peer) for who in kinds},
        f"{_slug(THIN)}_cpu_ratio": ratio(host_cpu, OURS, THIN),
        "agent_process_cpu_ms_per_turn_at_64": own_cpu(OURS),
        **{
            f"agent_process_{_slug(who)}_cpu_ratio": ratio(own_cpu, OURS, who)
            for who in (FLOOR, THIN, LITELLM, VERIFIERS)
        },
        "rss_mb_at_256": figure(OURS, "rss_mb", 256),
        "failures_at_1024": int(figure(OURS, "failures", 1024)),
        "wall_overhead_at_64": wall_overhead(OURS, THINKING_LATENCY_MS),
        **{
            f"wall_overhead_at_64_{_slug(who)}": wall_overhead(who, THINKING_LATENCY_MS)
            for who in (FLOOR, *kinds)
        },
        **{
            f"wall_overhead_at_64_{_slug(who)}_latency_100ms": wall_overhead(who, LATENCY_MS)
            for who in (FLOOR, OURS, *kinds)
        },
    }


def _slug(name: str) -> str:
    return name.replace(", ", "_").replace(" ", "_").replace("-", "_").lower()
