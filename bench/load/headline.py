"""The figures of a run that are quoted, from its rows.

CPU is that of the contender's own process, without the sandboxes and commands it starts, as peers
are compared elsewhere; `_host_` includes those: all that the host spends. Ratios are ours over
theirs. Unless their name says more, they are of the row with process sandboxes, which isolate as
little as the others do. `best_peer` is the installable peer with the least CPU; the loop of
mini-swe-agent around a model client written here, its leanest form, has a ratio of its own.
`wall_overhead` is the share by which a batch takes longer than the engine needs; with 100 ms per
call the commands alone keep both cores busy for longer than that, so one row has 1 s, as models
take.
"""

from collections.abc import Sequence

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

    def cpu(who: str) -> float:
        return figure(who, "cpu_ms")

    def host_cpu(who: str) -> float:
        return cpu(who) + figure(who, "children_ms")

    peers = (LITELLM, VERIFIERS)
    best_peer = min(peers, key=cpu)
    return {
        "cpu_ms_per_turn_at_64": cpu(OURS),
        "floor_cpu_ratio": round(cpu(OURS) / cpu(FLOOR), 3),
        "best_peer_cpu_ratio": round(cpu(OURS) / cpu(best_peer), 3),
        **{f"{_slug(peer)}_cpu_ratio": round(cpu(OURS) / cpu(peer), 3) for peer in (*peers, THIN)},
        **{
            f"floor_host_cpu_ratio_{_slug(who)}": round(host_cpu(who) / host_cpu(FLOOR), 3)
            for who in (OURS, BUBBLEWRAP, APPTAINER)
        },
        **{
            f"best_peer_host_cpu_ratio_{_slug(who)}": round(
                host_cpu(who) / min(map(host_cpu, peers)), 3
            )
            for who in (OURS, BUBBLEWRAP, APPTAINER)
        },
        "rss_mb_at_256": figure(OURS, "rss_mb", 256),
        "failures_at_1024": int(figure(OURS, "failures", 1024)),
        "wall_overhead_at_64": figure(OURS, "wall_overhead"),
        "floor_wall_overhead_at_64": figure(FLOOR, "wall_overhead"),
        **{
            f"{_slug(who)}_wall_overhead_at_64_latency_1s": figure(
                who, "wall_overhead", latency_ms=THINKING_LATENCY_MS
            )
            for who in (FLOOR, OURS, BUBBLEWRAP, APPTAINER)
        },
    }


def _slug(name: str) -> str:
    return name.replace(", ", "_").replace(" ", "_").replace("-", "_").lower()
