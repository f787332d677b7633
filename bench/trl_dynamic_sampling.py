"""The demo's training with dynamic sampling and without it, three seeds each, on held-out tasks.

Both take the same number of steps with the same number of groups. Every few steps the policy is
evaluated on tasks it is not trained on; that time is not counted. Draws the curves over training
time to bench/results/trl_dynamic_sampling.png.
"""

import argparse
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

from transformers import TrainerCallback

from bench import result
from bench.plots.drawing import redraw
from prorl_service import local
from prorl_service.client import RolloutClient
from recipes.demo.evaluate import evaluate, success
from recipes.demo.tasks import instances
from recipes.demo.train import LIMITS, TrainConfig, make_trainer
from recipes.demo.warm_start import WarmStart, warm_started

SEEDS = (0, 1, 2)
STEPS = 80
EVERY_STEPS = 10
HELDOUT_PER_FAMILY = 50
GOAL = 0.8
CONTEXT = 512


@dataclass(slots=True)
class Run:
    seed: int
    dynamic: bool
    zero_variance_share: float = 0.0
    rollouts: int = 0
    curve: list[tuple[float, float]] = field(default_factory=list)
    """Seconds of training, and success on held-out tasks."""

    @property
    def seconds_to_goal(self) -> float | None:
        return next((seconds for seconds, share in self.curve if share >= GOAL), None)

    def row(self) -> dict[str, object]:
        return {
            "seed": self.seed,
            "dynamic": self.dynamic,
            "zero_variance_share": round(self.zero_variance_share, 4),
            "heldout_before": self.curve[0][1],
            "heldout_after": self.curve[-1][1],
            f"seconds_to_{GOAL:g}": self.seconds_to_goal,
            "train_s": round(self.curve[-1][0], 1),
            "rollouts": self.rollouts,
            "curve": [[round(seconds, 1), share] for seconds, share in self.curve],
        }


class Evaluation(TrainerCallback):  # type: ignore[misc]
    """Callback that stops the clock and evaluates the policy."""

    def __init__(self, run: Run, url: str) -> None:
        self.trainer: Any = None
        self._run = run
        self._url = url
        self._tasks = [
            one.task() for one in instances("heldout", HELDOUT_PER_FAMILY, seed=run.seed)
        ]
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
        self._run.curve.append((trained_s, share))
        print(f"  {self._run.seed} {self._run.dynamic} {trained_s:.0f} s: {share:.3f}", flush=True)


def run(seed: int, *, dynamic: bool, steps: int, directory: Path) -> Run:
    outcome = Run(seed, dynamic)
    config = TrainConfig(seed=seed, steps=steps, dynamic_sampling=dynamic)
    model = warm_started(directory / "cache", WarmStart(seed=seed))
    output = directory / f"{seed}-{dynamic}"
    options = ["--max-model-len", str(CONTEXT)]
    with (
        local.engine(model, log=output / "engine.log", options=options) as engine,
        local.service([engine.url], log=output / "service.log") as service,
    ):
        evaluation = Evaluation(outcome, service.url)
        trainer = make_trainer(model, service.url, output, config)
        evaluation.trainer = trainer
        trainer.add_callback(evaluation)
        trainer.train()
    log = [entry for entry in trainer.state.log_history if "frac_reward_zero_std" in entry]
    outcome.zero_variance_share = fmean(entry["frac_reward_zero_std"] for entry in log)
    shares = [entry.get("prorl/sampling/informative_share", 1.0) for entry in log]
    outcome.rollouts = round(sum(config.rollouts / steps / share for share in shares if share))
    return outcome


def headline(runs: list[Run]) -> dict[str, object]:
    def of(dynamic: bool) -> list[Run]:
        return [one for one in runs if one.dynamic is dynamic]

    def to_goal(dynamic: bool) -> float | None:
        known = [one.seconds_to_goal for one in of(dynamic)]
        return median(known) if None not in known else None  # type: ignore[type-var]

    return {
        "zero_variance_share_with": round(fmean(one.zero_variance_share for one in of(True)), 4),
        "zero_variance_share_without": round(
            fmean(one.zero_variance_share for one in of(False)), 4
        ),
        "heldout_after_with": round(fmean(one.curve[-1][1] for one in of(True)), 4),
        "heldout_after_without": round(fmean(one.curve[-1][1] for one in of(False)), 4),
        f"median_seconds_to_{GOAL:g}_with": to_goal(True),
        f"median_seconds_to_{GOAL:g}_without": to_goal(False),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed, 10 steps, as a check")
    quick = parser.parse_args().quick
    with TemporaryDirectory(prefix="prorl-bench-") as directory:
        runs = [
            run(seed, dynamic=dynamic, steps=10 if quick else STEPS, directory=Path(directory))
            for seed in (SEEDS[:1] if quick else SEEDS)
            for dynamic in (False, True)
        ]
    if not quick:
        result.write("trl_dynamic_sampling", [one.row() for one in runs], headline(runs))
        redraw("trl_dynamic_sampling")


if __name__ == "__main__":
    main()
