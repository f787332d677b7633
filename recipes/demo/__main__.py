"""`make demo`: engine and service start as processes, and a tiny agent learns to use its shell.

Writes to outputs/demo (or --output): summary.json, curve.png, trajectories.html, and the logs.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import transformers
from cyclopts import Parameter
from cyclopts.types import PositiveInt
from tokenizers import Tokenizer

from prorl_service import local
from prorl_service.cli.program import run
from prorl_service.client import RolloutClient
from prorl_service.errors import ProRLError
from prorl_service.schemas import Rollout, Task
from prorl_service.utils import logs
from recipes.demo import report, viewer
from recipes.demo.evaluate import evaluate, success
from recipes.demo.tasks import instances
from recipes.demo.train import LIMITS, SUCCESS, TrainConfig, train, train_tasks
from recipes.demo.warm_start import WarmStart, warm_started

HELDOUT_PER_FAMILY = 50
HELDOUT_ROLLOUTS = 2
CONTEXT = 512
SHOWN_AT_EACH_END = 24
SHOW_EVERY_STEPS = 10
LOGPROB_GAP = "sampling/sampling_logp_difference/max"


def main(
    seed: Annotated[int, Parameter(help="Seed of tasks, warm start, training.")] = 0,
    steps: Annotated[PositiveInt, Parameter(help="Optimizer steps.")] = 80,
    output: Annotated[Path, Parameter(help="Directory for results.")] = Path("outputs/demo"),
) -> None:
    """Train a tiny Qwen3 agent through the rollout service, on the CPU."""
    transformers.logging.disable_progress_bar()
    config = TrainConfig(seed=seed, steps=steps)
    model = warm_started(output / "cache", WarmStart(seed=seed))
    logs_of_run = [output / "engine.log", output / "service.log"]
    for log in logs_of_run:
        log.unlink(missing_ok=True)
    run = _run(model, output, config)
    _check(logs_of_run)
    headline = run.headline(config)
    report.write_summary(
        output / "summary.json", headline, run.curve(), asdict(config), run.peak_memory_mb
    )
    report.write_curve(
        output / "curve.png",
        run.curve(),
        before=headline.heldout_success_before,
        after=headline.heldout_success_after,
        title="A tiny agent learns to use its shell",
    )
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    viewer.write_page(
        output / "trajectories.html",
        run.entries(config),
        title="Demo trajectories",
        token_text=lambda token: tokenizer.decode([token], skip_special_tokens=False),
    )
    print(f"results: {output}/summary.json, curve.png, trajectories.html")


@dataclass(slots=True)
class _Run:
    """Results of one training run; `observed` are the rollouts of each step."""

    heldout: list[Task]
    service_rss_mb: float = 0.0
    before: list[Rollout] = field(default_factory=list)
    observed: list[Sequence[Rollout]] = field(default_factory=list)
    log: list[dict[str, Any]] = field(default_factory=list)
    train_s: float = 0.0
    after: list[Rollout] = field(default_factory=list)
    peak_memory_mb: dict[str, float] = field(default_factory=dict)

    def headline(self, config: TrainConfig) -> report.Headline:
        return report.Headline(
            heldout_success_before=success(self.before),
            heldout_success_after=success(self.after),
            logprob_diff_max=max(entry[LOGPROB_GAP] for entry in self.log),
            rollouts_per_s=round(config.rollouts / self.train_s, 2),
            train_minutes=round(self.train_s / 60, 2),
            service_rss_mb=self.service_rss_mb,
        )

    def curve(self) -> list[report.Step]:
        return [
            report.Step(
                step=entry["step"],
                success=entry[SUCCESS],
                reward=entry["reward"],
                logprob_diff_max=entry[LOGPROB_GAP],
            )
            for entry in self.log
        ]

    def entries(self, config: TrainConfig) -> list[viewer.Entry]:
        """Returns some held-out rollouts of both ends, and one group of every tenth step."""
        heldout = {task.task_id: task for task in self.heldout}
        train = {task.task_id: task for task in train_tasks(config)}
        shown = slice(0, SHOWN_AT_EACH_END * HELDOUT_ROLLOUTS, HELDOUT_ROLLOUTS)
        return [
            *(viewer.Entry(one, heldout[one.task_id], "before") for one in self.before[shown]),
            *(
                viewer.Entry(one, train[one.task_id], "training", step)
                for step, batch in list(enumerate(self.observed, 1))[::SHOW_EVERY_STEPS]
                for one in batch[: config.rollouts_per_group]
            ),
            *(viewer.Entry(one, heldout[one.task_id], "after") for one in self.after[shown]),
        ]


def _run(model: Path, output: Path, config: TrainConfig) -> _Run:
    run = _Run([one.task() for one in instances("heldout", HELDOUT_PER_FAMILY, seed=config.seed)])
    options = ["--max-model-len", str(CONTEXT)]
    with (
        local.engine(model, log=output / "engine.log", options=options) as engine,
        local.service([engine.url], log=output / "service.log") as service,
        RolloutClient(service.url) as client,
    ):
        print(f"engine {engine.url}, service {service.url} (its API: {service.url}/docs)")
        run.service_rss_mb = _memory_mb(service.pid, "VmRSS")
        run.before = _evaluate(client, run.heldout, "before")
        started = time.monotonic()
        run.log = train(model, service.url, output, config, observe=run.observed.append)
        run.train_s = time.monotonic() - started
        run.after = _evaluate(client, run.heldout, "after")
        pids = {"trainer": os.getpid(), "engine": engine.pid, "service": service.pid}
        run.peak_memory_mb = {name: _memory_mb(pid, "VmHWM") for name, pid in pids.items()}
    return run


def _check(logs_of_run: Sequence[Path]) -> None:
    """Raises `ProRLError` if the engine or the service logged an error."""
    for log in logs_of_run:
        if errors := logs.errors(log.read_text(errors="replace")):
            raise ProRLError(f"{log} has errors, the first: {errors[0]}", hint="please report it")


def _evaluate(client: RolloutClient, tasks: Sequence[Task], name: str) -> list[Rollout]:
    rollouts = evaluate(client, tasks, name=name, n=HELDOUT_ROLLOUTS, limits=LIMITS)
    print(f"held-out success {name} training: {success(rollouts):.2f}")
    return rollouts


def _memory_mb(pid: int, field: Literal["VmRSS", "VmHWM"]) -> float:
    """Returns the resident set now, or its largest so far, in units of 10^6 bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    kib = int(status.partition(f"{field}:")[2].split()[0])
    return round(kib * 1024 / 1e6, 1)


if __name__ == "__main__":
    run(main)
