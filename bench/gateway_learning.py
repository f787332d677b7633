"""The demo with programs that others wrote as its agent, through TRL: how much a tiny agent learns.

pi and mini-swe-agent on a seed, a file on OpenAI's SDK on three. VeRL trains pi: `bench.verl pi`.
`python -m bench.gateway_learning [AGENT-SEED...]`: runs that are not named keep their figures, and
those in outputs/gateway_learning are not repeated. Also draws bench/results/gateway_learning.png.
A run of pi or the SDK takes twenty minutes on a quiet machine. mini-swe-agent, whose start imports
for four seconds, has fewer steps.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import result
from bench.plots.drawing import redraw

RUNS = ("pi-0", "openai-0", "openai-1", "openai-2", "mini_swe_agent-0")
STEPS = {"pi": 30, "openai": 30, "mini_swe_agent": 16}
OUTPUT = Path("outputs/gateway_learning")
Row = dict[str, Any]


def run(name: str) -> Row:
    agent, _, seed = name.partition("-")
    output = OUTPUT / name
    if not (output / "summary.json").exists():
        command = [sys.executable, "-m", "recipes.demo", "--harness", agent]
        command += ["--steps", str(STEPS[agent]), "--seed", seed, "--output", str(output)]
        subprocess.run(command, check=True)
    return row(agent, int(seed), json.loads((output / "summary.json").read_text()))


def row(agent: str, seed: int, summary: Mapping[str, Any]) -> Row:
    found, settings = summary["headline"], summary["settings"]
    groups, size = settings["groups_per_step"], settings["rollouts_per_group"]
    return {
        "agent": agent,
        "seed": seed,
        "heldout_before": found["heldout_success_before"],
        "heldout_after": found["heldout_success_after"],
        "logprob_diff_max": found["logprob_diff_max"],
        "rollouts": settings["steps"] * groups * size,
        "train_minutes": found["train_minutes"],
        "success": [round(point["success"], 3) for point in summary["curve"]],
    }


def headline(rows: Sequence[Row]) -> dict[str, object]:
    figures: dict[str, object] = {"logprob_diff_max": max(one["logprob_diff_max"] for one in rows)}
    for agent, name in (("pi", "pi"), ("mini_swe_agent", "mini"), ("openai", "sdk")):
        of_agent = [one for one in rows if one["agent"] == agent]
        if of_agent:
            figures[f"{name}_success_before"] = max(one["heldout_before"] for one in of_agent)
            figures[f"{name}_success_after"] = min(one["heldout_after"] for one in of_agent)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", nargs="*", choices=[*RUNS], default=[*RUNS])
    file = result.RESULTS / "gateway_learning.json"
    before: list[Row] = json.loads(file.read_text())["rows"] if file.exists() else []
    rows = {f"{one['agent']}-{one['seed']}": one for one in before}
    for name in parser.parse_args().run:
        rows[name] = run(name)
        known = [rows[one] for one in RUNS if one in rows]
        result.write("gateway_learning", known, headline(known))
        redraw("gateway_learning")


if __name__ == "__main__":
    main()
