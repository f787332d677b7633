"""The demo with programs that others wrote as its agent, through TRL: how much a tiny agent learns.

pi and mini-swe-agent on a seed, a file on OpenAI's SDK on three. VeRL trains pi: `bench.verl pi`.
Runs that are in outputs/gateway_learning are not repeated: remove them to run again. Also draws
bench/results/gateway_learning.png. Takes two hours.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from bench import result
from recipes.demo.report import smooth

RUNS = (("pi", 0), ("openai", 0), ("openai", 1), ("openai", 2), ("mini_swe_agent", 0))
STEPS = 30
OUTPUT = Path("outputs/gateway_learning")


def run(harness: str, seed: int) -> dict[str, Any]:
    output = OUTPUT / f"{harness}-{seed}"
    if not (output / "summary.json").exists():
        command = [sys.executable, "-m", "recipes.demo", "--harness", harness]
        command += ["--steps", str(STEPS), "--seed", str(seed), "--output", str(output)]
        subprocess.run(command, check=True)
    summary: dict[str, Any] = json.loads((output / "summary.json").read_text())
    return summary


def row(harness: str, seed: int, summary: dict[str, Any]) -> dict[str, object]:
    found, settings = summary["headline"], summary["settings"]
    return {
        "agent": harness,
        "seed": seed,
        "heldout_before": found["heldout_success_before"],
        "heldout_after": found["heldout_success_after"],
        "logprob_diff_max": found["logprob_diff_max"],
        "rollouts": settings["steps"]
        * settings["groups_per_step"]
        * settings["rollouts_per_group"],
        "train_minutes": found["train_minutes"],
    }


def headline(rows: list[dict[str, object]]) -> dict[str, object]:
    of = {(one["agent"], one["seed"]): one for one in rows}
    sdk = [one for one in rows if one["agent"] == "openai"]
    return {
        "pi_success_before": of["pi", 0]["heldout_before"],
        "pi_success_after": of["pi", 0]["heldout_after"],
        "mini_success_before": of["mini_swe_agent", 0]["heldout_before"],
        "mini_success_after": of["mini_swe_agent", 0]["heldout_after"],
        "sdk_success_before_most": max(float(str(one["heldout_before"])) for one in sdk),
        "sdk_success_after_least": min(float(str(one["heldout_after"])) for one in sdk),
        "logprob_diff_max": max(float(str(one["logprob_diff_max"])) for one in rows),
    }


def draw(summaries: dict[tuple[str, int], dict[str, Any]], path: Path) -> None:
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for (harness, seed), summary in summaries.items():
        steps = [point["step"] for point in summary["curve"]]
        success = smooth([point["success"] for point in summary["curve"]])
        name = harness if harness != "openai" else f"OpenAI's SDK, seed {seed}"
        (line,) = axes.plot(steps, success, linewidth=2, label=name)
        found = summary["headline"]
        ends = [found["heldout_success_before"], found["heldout_success_after"]]
        axes.plot([0, steps[-1]], ends, "o", color=line.get_color(), markersize=8)
    axes.set(xlabel="training step", ylabel="success", ylim=(0, 1.03))
    axes.set_title("Success on training tasks (lines) and held-out tasks (dots)")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(path, dpi=120)


def main() -> None:
    summaries = {one: run(*one) for one in RUNS}
    rows = [row(*one, summary) for one, summary in summaries.items()]
    draw(summaries, result.RESULTS / "gateway_learning.png")
    result.write("gateway_learning", rows, headline(rows))


if __name__ == "__main__":
    main()
