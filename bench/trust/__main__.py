"""Measures what the service guarantees under faults: `python -m bench.trust`, twenty minutes.

An outage of the engine, a front that is killed, a service that hangs, a journal of 50,000 rollouts,
VeRL's training phases longer than a budget, and a newcomer's mistakes. General cheats against the
SWE grader are `bench.swe_general`'s. The guarantees and their tests are in guarantees.json.
"""

import asyncio
import json
import os
import subprocess
from pathlib import Path

from bench import result
from bench.trust import front, journal, mistakes, outage
from bench.trust.guarantees import guarantees

ROOT = Path(__file__).parents[2]
ROLLOUTS = 50_000
HEADLINE = (
    "verl_carry_timeouts",
    "outage_failed",
    "front_restart_calls_per_rollout",
    "hang_recovery_s",
    "general_cheats_tried",
    "general_cheats_resolved",
)


def main() -> None:
    promised = guarantees()
    said = mistakes.rows()
    figures = {
        **outage.measure(),
        **asyncio.run(front.measure()),
        **asyncio.run(journal.measure(ROLLOUTS)),
        **_carried(),
        **_cheats(),
    }
    rows = [{"what": name, "found": value} for name, value in figures.items()]
    rows += [{"what": f"said of {row['mistake']}", "found": row["said"]} for row in said]
    headline = {
        "review_items": len(promised),
        "items_with_regression_test": sum(one.is_tested for one in promised),
        **{name: figures[name] for name in HEADLINE},
        "bad_messages_left": sum(not row["good"] for row in said),
    }
    result.write("trust", rows, headline)


def _carried() -> dict[str, float]:
    command = [str(ROOT / ".venv-verl/bin/python"), "-m", "bench.trust.carry"]
    paths = os.pathsep.join(str(ROOT / path) for path in ("", "plugins/verl"))
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _cheats() -> dict[str, float]:
    measured = json.loads((result.RESULTS / "swe_general.json").read_text())["headline"]
    return {name: measured[name] for name in HEADLINE if name in measured}


if __name__ == "__main__":
    main()
