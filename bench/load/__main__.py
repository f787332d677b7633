"""Cost of the service under load, next to a bare floor and to others. A quarter of an hour.

The figures of a row cover all its batches: `cpu_ms` is the CPU time of the contender's own process
per turn (one model call), `children_ms` that of the sandboxes and commands that it started: all
that the machine did meanwhile except the engine's part, so nothing else may run (with a single
rollout, which mostly waits, other processes are most of it). `added_ms` is the time from the
engine's answer to the rollout's next call. `wall_overhead` is the median time of a batch beyond the
engine's latency times the number of turns, as a share of that product. `failures` are rollouts that
did not make all calls with the right outputs, as the contender or the engine saw it. Of repeated
rows, the one with the median CPU time is kept, with the failures of all.

In the headline, CPU is that of the contender's own process, and `_host_` includes sandboxes and
commands. Ratios are ours over theirs, with process sandboxes, which isolate as little as the others
do, unless their name says more. `best_peer` is the installable peer with the least CPU. With 100 ms
per call the commands alone keep both cores busy for longer than the engine takes, so one load has
1 s, as models take.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from bench import frame
from bench.load import ours
from bench.load.meter import Measured, quantile, report
from bench.load.workload import MODEL_CALLS
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from tests.sandbox.images.debian import debian_image

PACKAGES = ["mini-swe-agent==2.4.6", "verifiers==0.4.0", "mcp"]
"""Peers, and what LiteLLM imports at its first call and does not require."""
PEER_TIMEOUT_S = 300.0

Measure = Callable[[str, int, int], Measured]
"""Function of engine, concurrent rollouts and batches."""

FLOOR, THIN = "floor", "mini-swe-agent, thin model"
OURS, BUBBLEWRAP, APPTAINER = "ours, process", "ours, bubblewrap", "ours, apptainer"
LITELLM, VERIFIERS = "mini-swe-agent, LiteLLM", "verifiers"
VOCAB_SIZE = 1024
LATENCY_MS, THINKING_LATENCY_MS = 100, 1000
MIN_ROLLOUTS = 128
"""Rollouts that a row should have: smaller loads take several batches."""
FIGURES = (
    *("rollouts_per_s", "cpu_ms", "children_ms", "rss_mb", "added_ms_p50", "added_ms_p95"),
    "wall_overhead",
)


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


def measures(directory: Path) -> dict[str, Measure]:
    def service(sandbox: str, image: str | None = None) -> Measure:
        return partial(ours.measure, sandbox, image, directory / "service.log")

    return {
        FLOOR: of_program("bench.load.floor", python=lambda: sys.executable),
        OURS: service("process"),
        BUBBLEWRAP: service("bubblewrap"),
        APPTAINER: service("apptainer", str(debian_image())),
        THIN: of_program("bench.load.peer_minisweagent"),
        LITELLM: of_program("bench.load.peer_minisweagent", "litellm"),
        VERIFIERS: of_program("bench.load.peer_verifiers"),
    }


def _peers_python() -> str:
    """Returns the Python of the peers' environment, which is made at first use."""
    place = frame.ROOT / ".venv-bench"
    python = str(place / "bin/python")
    if not (place / "complete").exists():
        print(f"setting up {place.name} (some minutes)", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        subprocess.run([python, "-m", "pip", "install", "-qq", *PACKAGES], check=True)
        (place / "complete").touch()
    return python


def of_program(module: str, *options: str, python: Callable[[], str] = _peers_python) -> Measure:
    """Makes a contender of a program that measures itself: see `meter`."""

    def measure(engine: str, n: int, batches: int) -> Measured:
        command = [python(), "-m", module, engine, str(n), str(batches), *options]
        environment = {**os.environ, "PYTHONPATH": str(frame.ROOT)}
        try:
            done = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, timeout=PEER_TIMEOUT_S, check=True
            )
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
            print(f"  {error}", flush=True)
            return Measured(failures=n * batches)
        return Measured(**json.loads(done.stdout.splitlines()[-1]))

    return measure


def measure_row(name: str, measure: Measure, load: Load, model: Path, _: int) -> frame.Row:
    with ours.stub_engine(model, load.latency_ms) as engine:
        measured = measure(engine, load.at_once, load.batches)
        seen = report(engine)
    rollouts = load.at_once * load.batches
    failures = max(measured.failures, rollouts - seen["complete"])
    figures = _figures(load, measured, seen) if measured.walls_s else dict.fromkeys(FIGURES)
    at = {"who": name, "at_once": load.at_once, "latency_ms": load.latency_ms}
    return {**at, **figures, "failures": failures}


def _figures(load: Load, measured: Measured, seen: dict[str, Any]) -> frame.Row:
    rollouts = load.at_once * load.batches
    turns = rollouts * MODEL_CALLS
    figures = (
        rollouts / sum(measured.walls_s),
        1e3 * measured.own_cpu_s / turns,
        1e3 * (measured.machine_cpu_s - measured.own_cpu_s - seen["cpu_s"]) / turns,
        measured.peak_rss_mb,
        quantile(seen["gaps_ms"], 0.5),
        quantile(seen["gaps_ms"], 0.95),
        median(measured.walls_s) / (MODEL_CALLS * load.latency_ms / 1e3) - 1,
    )
    rounded = (None if figure is None else round(figure, 3) for figure in figures)
    return dict(zip(FIGURES, rounded, strict=True))


def measure(quick: bool) -> frame.Found:
    """The quick form has no peers: their environment takes minutes to make."""
    plan = {Load(16): (FLOOR, OURS, BUBBLEWRAP)} if quick else FULL
    rows: list[frame.Row] = []
    with TemporaryDirectory(prefix="prorl-bench-") as name:
        model = Path(name) / "model"
        build_tiny_model(model, vocab_size=VOCAB_SIZE)
        all_measures = measures(Path(name))
        for load, names in plan.items():
            turns = {
                who: partial(measure_row, who, all_measures[who], load, model) for who in names
            }
            for repeated in frame.alternate(turns, load.rounds).values():
                failures = sum(row["failures"] for row in repeated)
                rows.append(frame.middle(repeated, "cpu_ms") | {"failures": failures})
    return frame.Found(rows, {} if quick else headline(rows))


def headline(rows: Sequence[frame.Row]) -> frame.Row:
    busy = {row["who"]: row for row in rows if (row["at_once"], row["latency_ms"]) == (64, 100)}
    own = {who: row["cpu_ms"] for who, row in busy.items()}
    host = {who: row["cpu_ms"] + row["children_ms"] for who, row in busy.items()}
    peers = (LITELLM, VERIFIERS)
    best_host = min(host[who] for who in peers)
    kinds = {"process": OURS, "bubblewrap": BUBBLEWRAP, "apptainer": APPTAINER}
    ratios = {
        "floor_cpu_ratio": own[OURS] / own[FLOOR],
        "best_peer_cpu_ratio": own[OURS] / min(own[who] for who in peers),
        **{f"floor_host_cpu_ratio_ours_{k}": host[who] / host[FLOOR] for k, who in kinds.items()},
        **{f"best_peer_host_cpu_ratio_ours_{k}": host[who] / best_host for k, who in kinds.items()},
    }
    return {
        "cpu_ms_per_turn_at_64": own[OURS],
        "host_cpu_ms_per_turn_at_64": round(host[BUBBLEWRAP], 3),
        "host_cpu_ms_of_floor": round(host[FLOOR], 3),
        "host_cpu_ms_of_minisweagent": round(host[LITELLM], 3),
        **{name: round(ratio, 3) for name, ratio in ratios.items()},
    }


if __name__ == "__main__":
    frame.run("load", {"load": measure})
