"""Measure what a killed service loses, and what it costs not to: `python -m bench.resume`.

Leaves bench/results/resume.json; takes about a quarter of an hour.

20 kills under 64 rollouts of 10 turns: 40 write files with bash, 16 count in a variable of IPython,
8 fix two offline SWE instances. `turns_kept_share` is the share of the turns sampled before a kill
that were not sampled again after it, over all kills. `resume_s` is the time from the start of a
service to the next model call of a resumed rollout, with all 64 waiting for sandboxes.
"""

import asyncio
import dataclasses
import os
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import result
from bench.resume import cost, kills
from recipes.swebench.offline import build_all, default_directory

KILLS = 20
KINDS = {"files": 40, "kernel": 16, "swe": 8}
LATENCY_S = 1.0
ROUNDS = 5
INSTANCES = 2
SAVE_EVERY_S = 0
"""Rollouts of ten seconds are too short for the default of ten seconds."""


def main() -> None:
    print(f"load of this machine before: {os.getloadavg()[0]:.1f}", flush=True)
    instances = build_all(default_directory(), progress=print)[:INSTANCES]
    with TemporaryDirectory(prefix="prorl-bench-") as name:
        directory = Path(name)
        saved = asyncio.run(cost.savings(directory / "layers"))
        cpu = cost.cpu(directory, ROUNDS)
        measured = kills.measure(
            directory / "kills",
            KILLS,
            KINDS,
            instances,
            latency_s=LATENCY_S,
            options=["--save-every-s", str(SAVE_EVERY_S)],
        )
    for problem in measured.problems:
        print(problem)
    row = dataclasses.asdict(measured)
    del row["problems"]
    headline = {
        "kills": measured.kills,
        "turns_kept_share": round(measured.kept_share, 3),
        "rollouts_lost": measured.lost,
        "rollouts_twice": measured.twice,
        "cpu_ratio": cpu[-1]["ratio"],
        "bytes_per_token": round(measured.bytes_per_token, 1),
        "snapshot_ms_p50": saved[0]["p50_ms"],
        "resume_s_p50": round(measured.resume_s_p50, 2),
    }
    result.write("resume", [row, *cpu, *saved], headline)


if __name__ == "__main__":
    main()
