"""One line per step, the same for every trainer: on the terminal and in progress.jsonl.

Other logs are the trainers' own, and stay where the trainers put them.
"""

import json
from collections.abc import Mapping
from pathlib import Path

UNFILTERED = "prorl/sampling/unfiltered_reward"


class Progress:
    """`success`: name of the mean reward of all graded rollouts."""

    def __init__(self, path: Path, *, success: str, steps: int) -> None:
        self._path, self._success, self._steps = path, success, steps
        path.parent.mkdir(parents=True, exist_ok=True)

    def log(self, step: int, metrics: Mapping[str, float], *, trained_on: str) -> None:
        """Writes and prints a step's line. `trained_on`: the trainer's name for the mean reward of
        the rollouts that it trains on: all of them without dynamic sampling."""
        reward = metrics[trained_on]
        entry = {
            "step": step,
            self._success: metrics.get(UNFILTERED, reward),
            "trained_on": reward,
            **{name: value for name, value in metrics.items() if name.startswith("prorl/")},
        }
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        print(
            f"step {step}/{self._steps}: {self._success} {entry[self._success]:.3f}, "
            f"trained on {reward:.3f}",
            flush=True,
        )
