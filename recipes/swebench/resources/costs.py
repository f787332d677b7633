"""Measured costs of a rollout on the service's host, read from bench/results.

Measures nothing. The figures are of the machine that wrote them; each file names it.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prorl_service.errors import ProRLError

RESULTS = Path(__file__).resolve().parents[3] / "bench" / "results"

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of the Apptainer kind. Memory is a line through two measurements: base and slope."""

    turn_cpu_ms: float
    """CPU time of service, sandbox and command for a turn with a short command."""
    turn_overhead_s: float
    """Added to a model's time by the service and the command."""
    service_mb: float
    service_mb_per_rollout: float
    image_mb: float
    """Memory of the running container of one image, shared by its sandboxes."""
    sandbox_mb: float
    grading_s: float
    """Wall time of one grading, its tests included; on one core."""


def read_costs(results: Path = RESULTS, *, grading_s: float | None = None) -> Costs:
    """Reads the costs. `grading_s` replaces the measured one. Raises `ProRLError` if one is
    missing."""
    load = _rows(results, "load")
    turn = _row(load, who="ours, apptainer", at_once=64, latency_ms=1000)
    few, many = (_row(load, who="ours, process", at_once=n, latency_ms=100) for n in (1, 1024))
    service_mb, per_rollout_mb = _line(1, few["rss_mb"], 1024, many["rss_mb"])
    alone, together = (
        _row(_rows(results, "tools"), part="many", who=_SIF, what="thinking", at_once=n)
        for n in (1, 256)
    )
    image_mb, sandbox_mb = _line(1, alone["pss_mb"], 256, 256 * together["pss_mb"])
    return Costs(
        turn_cpu_ms=turn["cpu_ms"] + turn["children_ms"],
        turn_overhead_s=turn["added_ms_p50"] / 1000,
        service_mb=service_mb,
        service_mb_per_rollout=per_rollout_mb,
        image_mb=image_mb,
        sandbox_mb=sandbox_mb,
        grading_s=_grading_s(results) if grading_s is None else grading_s,
    )


_SIF = "ours, apptainer SIF"


def _grading_s(results: Path) -> float:
    return float(_read(results, "swe_offline")["headline"]["grading_s_per_instance_p50"])


def _line(x1: int, y1: float, x2: int, y2: float) -> tuple[float, float]:
    """Returns the value at zero, and the slope."""
    slope = (y2 - y1) / (x2 - x1)
    return y1 - slope * x1, slope


def _rows(results: Path, name: str) -> Rows:
    rows: Rows = _read(results, name)["rows"]
    return rows


def _row(rows: Rows, **wanted: object) -> dict[str, Any]:
    for row in rows:
        if wanted.items() <= row.items():
            return row
    raise ProRLError(f"bench/results has no row {wanted}", hint="run scripts/bench to write it")


def _read(results: Path, name: str) -> dict[str, Any]:
    path = results / f"{name}.json"
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise ProRLError(
            f"there is no {path}",
            hint=f"scripts/bench {name} measures it on this machine"
            + ("; or give --grading-s" if name == "swe_offline" else ""),
        ) from None
    return content
