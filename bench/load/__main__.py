"""Measure all, or a little of all: `python -m bench.load [--quick]`.

A whole run leaves bench/results/load.json and load.png; it takes about a quarter of an hour.

The figures of a row cover all its batches: `cpu_ms` is the CPU time of the contender's own process
per turn (one model call), `children_ms` that of the sandboxes and commands that it started: all
that the machine did meanwhile except the engine's part, so nothing else may run (with a single
rollout, which mostly waits, other processes are most of it). `added_ms` is the time from the
engine's answer to the rollout's next call. `lag_ms` is the delay of the event loop. `wall_overhead`
is the median time of a batch beyond the engine's latency times the number of turns, as a share of
that product. `failures` are rollouts that did not make all calls with the right outputs, as the
contender or the engine saw it. Of repeated rows, the one with the median CPU time is kept, with the
failures of all.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from bench import result
from bench.load import contenders
from bench.load.contenders import Measure
from bench.load.headline import (
    APPTAINER,
    BUBBLEWRAP,
    FLOOR,
    LATENCY_MS,
    LITELLM,
    OURS,
    THIN,
    THINKING_LATENCY_MS,
    VERIFIERS,
    headline,
)
from bench.load.meter import Measured, quantile, report
from bench.load.ours import Kind
from bench.load.workload import MODEL_CALLS
from bench.plots.drawing import redraw
from bench.tools.rungs import sif
from prorl_service.inference.reference_engine.tiny import build_tiny_model

Row = dict[str, object]

VOCAB_SIZE = 1024
MIN_ROLLOUTS = 128
"""Rollouts that a row should have: smaller loads take several batches."""


@dataclass(frozen=True, slots=True)
class Load:
    at_once: int
    latency_ms: int = LATENCY_MS
    rounds: int = 1
    """Rounds in which all its contenders take turns."""

    @property
    def batches(self) -> int:
        return min(8, max(1, MIN_ROLLOUTS // self.at_once))


EVERYONE = (FLOOR, OURS, THIN, LITELLM, VERIFIERS)
KINDS = (FLOOR, OURS, BUBBLEWRAP, APPTAINER, THIN, LITELLM, VERIFIERS)
FULL: dict[Load, Sequence[str]] = {
    Load(1): EVERYONE,
    Load(16): EVERYONE,
    Load(64, rounds=3): KINDS,
    Load(64, latency_ms=THINKING_LATENCY_MS): (FLOOR, OURS, BUBBLEWRAP, APPTAINER),
    Load(256): EVERYONE,
    Load(1024): (FLOOR, OURS),
}
QUICK: dict[Load, Sequence[str]] = {Load(16): KINDS}


def measures(directory: Path) -> dict[str, Measure]:
    def service(sandbox: str, image: str | None = None) -> Measure:
        return contenders.of_service(Kind(sandbox, image), directory / "service.log")

    return {
        FLOOR: contenders.floor(),
        OURS: service("process"),
        BUBBLEWRAP: service("bubblewrap"),
        APPTAINER: service("apptainer", str(sif())),
        THIN: contenders.peer("bench.load.peer_minisweagent"),
        LITELLM: contenders.peer("bench.load.peer_minisweagent", "litellm"),
        VERIFIERS: contenders.peer("bench.load.peer_verifiers"),
    }


def run(plan: dict[Load, Sequence[str]], directory: Path) -> list[Row]:
    model = directory / "model"
    build_tiny_model(model, vocab_size=VOCAB_SIZE)
    measure = measures(directory)
    rows = []
    for load, names in plan.items():
        rounds = [
            {name: measure_row(name, measure[name], load, model) for name in names}
            for _ in range(load.rounds)
        ]
        rows += [_typical([one[name] for one in rounds]) for name in names]
    return rows


def measure_row(name: str, measure: Measure, load: Load, model: Path) -> Row:
    with contenders.engine(model, load.latency_ms) as engine:
        measured = measure(engine, load.at_once, load.batches)
        seen = report(engine)
    row = _row(name, load, measured, seen)
    print("  " + "  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    return row


def _row(name: str, load: Load, measured: Measured, seen: dict[str, Any]) -> Row:
    rollouts = load.at_once * load.batches
    row: Row = {"who": name, "at_once": load.at_once, "latency_ms": load.latency_ms}
    failures = max(measured.failures, rollouts - seen["complete"])
    if not measured.walls_s:
        return {**row, **dict.fromkeys(FIGURES), "failures": failures}
    ideal_s = MODEL_CALLS * load.latency_ms / 1e3
    turns = rollouts * MODEL_CALLS
    figures = (
        rollouts / sum(measured.walls_s),
        1e3 * measured.own_cpu_s / turns,
        1e3 * (measured.machine_cpu_s - measured.own_cpu_s - seen["cpu_s"]) / turns,
        measured.peak_rss_mb,
        quantile(seen["gaps_ms"], 0.5),
        quantile(seen["gaps_ms"], 0.95),
        measured.lag_p50_ms,
        measured.lag_p99_ms,
        median(measured.walls_s) / ideal_s - 1,
    )
    rounded = (None if figure is None else round(figure, 3) for figure in figures)
    return {**row, **dict(zip(FIGURES, rounded, strict=True)), "failures": failures}


FIGURES = (
    *("rollouts_per_s", "cpu_ms", "children_ms", "rss_mb", "added_ms_p50", "added_ms_p95"),
    *("lag_ms_p50", "lag_ms_p99", "wall_overhead"),
)


def _typical(rows: Sequence[Row]) -> Row:
    def cpu_ms(row: Row) -> float:
        return float("inf") if row["cpu_ms"] is None else float(str(row["cpu_ms"]))

    failures = sum(int(str(row["failures"])) for row in rows)
    return {**sorted(rows, key=cpu_ms)[len(rows) // 2], "failures": failures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="16 rollouts, as a check")
    quick = parser.parse_args().quick
    started = time.monotonic()
    print(f"load of this machine before: {os.getloadavg()[0]:.1f}", flush=True)
    with TemporaryDirectory(prefix="prorl-bench-") as directory:
        rows = run(QUICK if quick else FULL, Path(directory))
    print(f"took {time.monotonic() - started:.0f} s", file=sys.stderr)
    if not quick:
        result.write("load", rows, headline(rows))
        redraw("load")


if __name__ == "__main__":
    main()
