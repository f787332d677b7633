"""The demo's training with dynamic sampling and without it, three seeds each, on held-out tasks.

Both take the same number of steps with the same number of groups. Every few steps the policy is
evaluated on tasks it is not trained on; that time is not counted.
"""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

from transformers import TrainerCallback

from bench import frame
from prorl_service import local
from prorl_service.client import RolloutClient
from recipes.demo.evaluate import evaluate, success
from recipes.demo.tasks import instances
from recipes.demo.train import LIMITS, TrainConfig, make_trainer
from recipes.demo.warm_start import WarmStart, warm_started

SEEDS, STEPS, QUICK_STEPS = 3, 80, 2
EVERY_STEPS = 10
HELDOUT_PER_FAMILY = 50
GOAL = 0.8
CONTEXT = 512


class Evaluation(TrainerCallback):  # type: ignore[misc]
    """Callback that stops the clock and evaluates the policy."""

    def __init__(self, url: str, seed: int) -> None:
        self.trainer: Any = None
        self.curve: list[tuple[float, float]] = []
        """Seconds of training, and success on held-out tasks."""
        self._url = url
        self._tasks = [one.task() for one in instances("heldout", HELDOUT_PER_FAMILY, seed=seed)]
        self._evaluating_s = 0.0
        self._began_at = 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._began_at = time.monotonic()
        self._evaluate("before")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % EVERY_STEPS == 0:
            began_at = time.monotonic()
            self.trainer.rollout_func.push_weights()
            self._evaluating_s += time.monotonic() - began_at
            self._evaluate(f"step-{state.global_step}")

    def _evaluate(self, name: str) -> None:
        now = time.monotonic()
        trained_s = now - self._began_at - self._evaluating_s
        with RolloutClient(self._url) as client:
            share = success(evaluate(client, self._tasks, n=2, name=name, limits=LIMITS))
        self._evaluating_s += time.monotonic() - now
        self.curve.append((trained_s, share))


def train(directory: Path, steps: int, dynamic: bool, seed: int) -> frame.Row:
    config = TrainConfig(seed=seed, steps=steps, dynamic_sampling=dynamic)
    model = warm_started(directory / "cache", WarmStart(seed=seed))
    output = directory / f"{seed}-{dynamic}"
    options = ["--max-model-len", str(CONTEXT)]
    with (
        local.engine(model, log=output / "engine.log", options=options) as engine,
        local.service([engine.url], log=output / "service.log") as service,
    ):
        evaluation = Evaluation(service.url, seed)
        trainer = make_trainer(model, service.url, output, config)
        evaluation.trainer = trainer
        trainer.add_callback(evaluation)
        trainer.train()
    log = [entry for entry in trainer.state.log_history if "frac_reward_zero_std" in entry]
    curve = evaluation.curve
    return {
        "seed": seed,
        "dynamic": dynamic,
        "zero_variance_share": round(fmean(one["frac_reward_zero_std"] for one in log), 4),
        "heldout_after": curve[-1][1],
        f"seconds_to_{GOAL:g}": next((at for at, share in curve if share >= GOAL), None),
        "train_s": round(curve[-1][0], 1),
        "curve": [[round(seconds, 1), share] for seconds, share in curve],
    }


def headline(runs: Mapping[str, Sequence[frame.Row]]) -> frame.Row:
    figures: frame.Row = {}
    for name, own in runs.items():
        for column in ("zero_variance_share", "heldout_after"):
            figures[f"{column}_{name}"] = round(fmean(one[column] for one in own), 4)
        to_goal = [one[f"seconds_to_{GOAL:g}"] for one in own]
        reached = None if None in to_goal else median(to_goal)
        figures[f"median_seconds_to_{GOAL:g}_{name}"] = reached
    return figures


def measure(quick: bool) -> frame.Found:
    steps, seeds = (QUICK_STEPS, 1) if quick else (STEPS, SEEDS)
    with TemporaryDirectory(prefix="prorl-bench-") as name:
        runs = frame.alternate(
            {
                "without": partial(train, Path(name), steps, False),
                "with": partial(train, Path(name), steps, True),
            },
            seeds,
        )
    return frame.Found([row for own in runs.values() for row in own], headline(runs))


if __name__ == "__main__":
    frame.run("trl_dynamic_sampling", {"trl_dynamic_sampling": measure})
