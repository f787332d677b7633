"""The figures of a run that are quoted, from its rows. Ratios are of medians, theirs over ours.

`bash_vs_pty_floor_ratio` and `cold_start_vs_exec_ratio` are the other way round, ours over theirs,
and so is `uds_vs_tcp_ratio`: UDS over TCP, for the same frames. Plain `_at_64` is the load back to
back, `_thinking` the other one; `warm_start` is a fork of a running container.
"""

from collections.abc import Sequence

from bench.tools import bash, ipython, many, orphans, sockets, starts
from bench.tools.timing import Row

OURS = "ours, apptainer SIF"
BUSY = 64


def headline(rows: Sequence[Row]) -> dict[str, object]:
    def figure(part: str, who: str, what: str, column: str = "p50_ms", **also: object) -> float:
        wanted = {"part": part, "who": who, "what": what, **also}
        (row,) = (row for row in rows if wanted.items() <= row.items())
        return float(str(row[column]))

    def true(who: str) -> float:
        return figure(bash.PART, who, "true")

    def ratio(above: float, below: float) -> float:
        return round(above / below, 3)

    ours = true(OURS)
    ipython_ms = figure(ipython.PART, OURS, "1+1")
    gateway_ms, quick_gateway_ms = (
        figure(ipython.PART, who, "1+1") for who in (ipython.GATEWAY, ipython.GATEWAY_QUICK)
    )
    full, thinking = (figure(many.PART, OURS, load, "p95_ms", at_once=BUSY) for load in many.LOADS)
    cold, same_exec, warm, pool = (
        figure(starts.PART, who, "1 at once")
        for who in (starts.COLD, starts.SAME_EXEC, starts.WARM, starts.POOL)
    )
    uds, tcp = (figure(sockets.PART, who, "ping") for who in (sockets.UDS, sockets.TCP))
    return {
        "bash_apptainer_p50_ms": ours,
        "bash_apptainer_p95_ms_at_64": full,
        "bash_apptainer_p95_ms_at_64_thinking": thinking,
        "bash_vs_tmux_ratio": ratio(true(bash.POLLED), ours),
        "bash_vs_tmux_best_ratio": ratio(true(bash.CONTROL), ours),
        "bash_vs_pty_floor_ratio": ratio(ours, true(bash.FLOOR)),
        "bash_vs_blocking_pty_ratio": ratio(ours, true(bash.BLOCKING_FLOOR)),
        "ipython_p50_ms": ipython_ms,
        "ipython_vs_gateway_ratio": ratio(gateway_ms, ipython_ms),
        "ipython_vs_gateway_no_delayed_ack_ratio": ratio(quick_gateway_ms, ipython_ms),
        "uds_vs_tcp_ratio": ratio(uds, tcp),
        "warm_start_p50_ms": warm,
        "pool_start_p50_ms": pool,
        "cold_start_vs_exec_ratio": ratio(cold, same_exec),
        "orphans_after_1000_cycles": orphans.count(rows, OURS),
        "kills_blamed_on_image_of_1000_cycles": orphans.blamed(rows, OURS),
    }
