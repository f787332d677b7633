"""What the simulation gives for the fleets that were run, and for larger ones."""

import os
from collections.abc import Mapping, Sequence

from bench.nodes.load import CALLS
from bench.nodes.services import SLOTS
from bench.nodes.simulation import Costs, Shape, simulate
from bench.result import Part

SATURATED_S = 30.0
FLEET_SLOTS = 64
KINDS = {"SWE, 600 s, 32k tokens": (600.0, "32k"), "math, 30 s, 64 tokens": (30.0, "64")}
FLEETS = (64, 256, 1000)
LARGEST = 10_000

Row = Mapping[str, object]


def simulated(waiting: Sequence[Row], saturated: Sequence[Row], front: Mapping[str, float]) -> Part:
    """`waiting`, `saturated`: rows of services, the first with few rollouts a second; `front`:
    headline of `bench.front`. The first saturated row says what a rollout costs: the simulation of
    all others uses it."""
    costs = _costs(saturated[0], front)
    compared = [_compared(row, costs) for row in (*waiting, *saturated[1:])]
    rows = [*compared, *_clusters(front)]
    return rows, {"simulation_error_max": max(float(str(row["error"])) for row in compared)}


def _costs(row: Row, front: Mapping[str, float]) -> Costs:
    front_ms, all_ms = float(str(row["front_ms"])), float(str(row["all_ms"]))
    return Costs(front_ms / 1e3, (all_ms - front_ms) / 1e3, front["idle_256_cores"] / 256)


def _compared(row: Row, costs: Costs) -> dict[str, object]:
    services, call_s = int(str(row["services"])), float(str(row["call_s"]))
    shape = Shape.even(services, SLOTS, CALLS, call_s)
    found = simulate(shape, costs, cores=os.cpu_count(), least_s=SATURATED_S)
    busy = float(str(row["busy"]))
    return {
        "services": services,
        "call_s": call_s,
        "busy_measured": busy,
        "busy_simulated": round(found.busy, 4),
        "error": round(abs(found.busy - busy) / busy, 4),
    }


def _clusters(front: Mapping[str, float]) -> list[dict[str, object]]:
    rows = []
    for kind, (mean_s, tokens) in KINDS.items():
        for services in (*FLEETS, *([LARGEST] if mean_s > 100 else [])):
            rows.append(_cluster(kind, services, mean_s, front, tokens))
            print(f"  {rows[-1]}", flush=True)
    return rows


def _cluster(
    kind: str, services: int, mean_s: float, front: Mapping[str, float], tokens: str
) -> dict[str, object]:
    front_s = front[f"front_ms_per_rollout_{tokens}_tokens"] / 1e3
    costs = Costs(front_s, 0.0, front["idle_256_cores"] / 256)
    shape = Shape.long_tailed(services, FLEET_SLOTS, mean_s)
    found = simulate(shape, costs, cores=None)
    return {
        "rollouts": kind,
        "design": "one front",
        "services": services,
        "busy": round(found.busy, 3),
        "rollouts_per_s": round(found.rollouts_per_s, 1),
        "front_cores": round(found.front_cores, 3),
    }
