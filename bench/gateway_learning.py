"""The demo with programs that others wrote as its agent, through TRL: how much a tiny agent learns.

pi and mini-swe-agent on a seed, a file on OpenAI's SDK on three. VeRL trains pi: `bench.verl pi`.
Runs in outputs/gateway_learning are not repeated. One of pi or the SDK takes twenty minutes on a
quiet machine. mini-swe-agent, whose start imports for four seconds, has fewer steps.
"""

from pathlib import Path

from bench import frame
from bench.demo import summary

RUNS = (("pi", 0), ("mini_swe_agent", 0), ("openai", 0), ("openai", 1), ("openai", 2))
STEPS = {"pi": 30, "openai": 30, "mini_swe_agent": 16}
OUTPUT = Path("outputs/gateway_learning")


def row(agent: str, seed: int, steps: int, output: Path) -> frame.Row:
    options = ("--harness", agent, "--steps", str(steps), "--seed", str(seed))
    found = summary(output, *options)
    figures, settings = found["headline"], found["settings"]
    return {
        "agent": agent,
        "seed": seed,
        "heldout_before": figures["heldout_success_before"],
        "heldout_after": figures["heldout_success_after"],
        "logprob_diff_max": figures["logprob_diff_max"],
        "rollouts": steps * settings["groups_per_step"] * settings["rollouts_per_group"],
        "train_minutes": figures["train_minutes"],
        "success": [round(point["success"], 3) for point in found["curve"]],
    }


def measure(quick: bool) -> frame.Found:
    if quick:
        return frame.Found([row("openai", 0, 1, OUTPUT / "quick")], {})
    rows = [row(agent, seed, STEPS[agent], OUTPUT / f"{agent}-{seed}") for agent, seed in RUNS]
    return frame.Found(rows, {"logprob_diff_max": max(one["logprob_diff_max"] for one in rows)})


if __name__ == "__main__":
    frame.run("gateway_learning", {"gateway_learning": measure})
