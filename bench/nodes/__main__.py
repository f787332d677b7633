"""Many services behind one front: `python -m bench.nodes [PART...]`, an hour.

`front`: figures of `python -m bench.front`. `services`: throughput with 1 to 64 services, processes
of this machine, dominated by waiting. `saturated`: the same with calls so short that processors
limit them. `ray`: eight services that `prorl ray` started. `simulation`: what a model of the front
gives for the same fleets, and for larger ones. `faults`: hosts that die, hang and lose their links,
in network namespaces; needs root. `storm`: a Ray cluster whose nodes and actors die. Parts that are
not named keep their figures. Nothing else may run meanwhile: a row says where the machine was busy.
"""

import argparse
import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from bench import result
from bench.nodes import larger, plot, services
from bench.nodes.faults import faults, storm
from bench.result import Part

ROOT = Path(__file__).parents[2]
VERL = ROOT / ".venv-verl" / "bin" / "python"
COUNTS = (1, 2, 4, 8, 16, 64)
SATURATED, ON_RAY = (4, 8), 8
FRONT = ("front_ms_per_rollout_64_tokens", "front_ms_per_rollout_32k_tokens", "idle_256_cores")

Row = Mapping[str, object]


def measured_services() -> Part:
    rows = [_told(row) for row in services.scaling(COUNTS)]
    alone = float(str(rows[0]["busy"]))
    efficiency = {row["services"]: float(str(row["busy"])) / alone for row in rows}
    return rows, {f"efficiency_{count}": round(efficiency[count], 4) for count in (8, 64)}


def saturated() -> Part:
    return [_told(services.saturated(count)) for count in SATURATED], {}


def on_ray() -> Part:
    command = [str(VERL), "-m", "bench.nodes.cluster", str(ON_RAY)]
    paths = os.pathsep.join(str(ROOT / path) for path in ("", "plugins/verl"))
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    row: Row = json.loads(done.stdout.splitlines()[-1])
    alone = next(one for one in _written("services") if one["services"] == 1)
    efficiency = float(str(row["busy"])) / float(str(alone["busy"]))
    return [_told(row)], {f"efficiency_{ON_RAY}_ray": round(efficiency, 4)}


def simulation() -> Part:
    return larger.simulated(_written("services"), _written("saturated"), _front())


def front() -> Part:
    figures = _front()
    return [], {name: figures[name] for name in FRONT}


def _front() -> dict[str, float]:
    """Returns the headline of `bench.front`."""
    file = result.RESULTS / "scale_front.json"
    figures: dict[str, float] = json.loads(file.read_text())["headline"]
    return figures


def _written(part: str) -> list[Row]:
    rows = json.loads((result.RESULTS / "scale.json").read_text())["rows"]
    return [row for row in rows if row["part"] == part]


def _told(row: Row) -> Row:
    print(json.dumps(row), flush=True)
    return row


PARTS: Mapping[str, Callable[[], Part]] = {
    "front": front,
    "services": measured_services,
    "saturated": saturated,
    "ray": on_ray,
    "simulation": simulation,
    "faults": faults,
    "storm": storm,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="*", choices=[*PARTS])
    result.write_parts("scale", PARTS, parser.parse_args().part, module="nodes")
    plot.draw(_written("services"), _written("simulation"), result.RESULTS / "scale.png")


if __name__ == "__main__":
    main()
