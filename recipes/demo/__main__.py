"""`make demo`: engine and service start as processes, and a tiny agent learns to use its shell.

`make demo-lm` has a pretrained language model learn the same, SmolLM2 with 135 million parameters.
With `--harness`, the agent is a program that somebody else wrote, unchanged. Writes to
outputs/demo (or --output): summary.json, curve.png, trajectories.html, and the logs.
"""

import os
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import transformers
from cyclopts import Parameter
from cyclopts.types import PositiveInt

from prorl_service import local
from prorl_service.cli.program import run
from prorl_service.client import RolloutClient
from prorl_service.errors import ProRLError
from prorl_service.schemas import Rollout, Task
from prorl_service.utils import logs
from recipes.demo import report
from recipes.demo.evaluate import evaluate, sampled_tokens, success
from recipes.demo.policies import AGENTS, CONFIGS, WITH_HARNESS
from recipes.demo.programs import task_for
from recipes.demo.tasks import CONTEXT, LIMITS, instances
from recipes.demo.train import SUCCESS, TrainConfig, train
from recipes.demo.warm_start import WARM_STARTS, Policy, warm_started

HELDOUT_PER_FAMILY = 50
HELDOUT_ROLLOUTS = 2
SHOWN_AT_EACH_END = 24
SHOW_EVERY_STEPS = 10
LOGPROB_GAP = "sampling/sampling_logp_difference/max"


def main(
    policy: Annotated[Policy, Parameter(help="Model to train.")] = "tiny",
    seed: Annotated[int, Parameter(help="Seed of tasks, warm start, training.")] = 0,
    steps: Annotated[
        PositiveInt | None, Parameter(help="Batches of rollouts (default: 80, smollm2: 12).")
    ] = None,
    output: Annotated[Path, Parameter(help="Directory for results.")] = Path("outputs/demo"),
    harness: Annotated[
        Literal["pi", "mini_swe_agent", "openai"] | None,
        Parameter(help="Agent to train: pi, mini-swe-agent, or a file on OpenAI's SDK."),
    ] = None,
    engine: Annotated[
        str | None, Parameter(help="URL of an engine that serves OUTPUT/cache/warm-start-*.")
    ] = None,
) -> None:
    """Train a small agent through the rollout service, on the CPU."""
    transformers.logging.disable_progress_bar()
    defaults = (CONFIGS if harness is None else WITH_HARNESS)[policy]
    config = replace(defaults, seed=seed, steps=steps or defaults.steps, program=harness)
    warm_start = replace(WARM_STARTS[policy], seed=seed)
    model = warm_started(output / "cache", warm_start, program=harness)
    logs_of_run = [output / "engine.log", output / "service.log"]
    for log in logs_of_run:
        log.unlink(missing_ok=True)
    run = _run(model, output, config, engine)
    _check(logs_of_run)
    headline = run.headline(config)
    settings = asdict(config) | {"limits": config.limits.model_dump(mode="json")}
    report.write_summary(
        output / "summary.json", headline, run.curve(), settings, run.peak_memory_mb
    )
    report.write_curve(
        output / "curve.png",
        run.curve(),
        before=headline.heldout_success_before,
        after=headline.heldout_success_after,
        title=f"{AGENTS[policy]} learns to use {'its shell' if harness is None else harness}",
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
    after_s: float = 0.0
    peak_memory_mb: dict[str, float] = field(default_factory=dict)

    def headline(self, config: TrainConfig) -> report.Headline:
        return report.Headline(
            heldout_success_before=success(self.before),
            heldout_success_after=success(self.after),
            logprob_diff_max=max(entry[LOGPROB_GAP] for entry in self.log),
            rollouts_per_s=round(config.rollouts / self.train_s, 2),
            train_minutes=round(self.train_s / 60, 2),
            service_rss_mb=self.service_rss_mb,
            sampled_tokens_per_s=round(sampled_tokens(self.after) / self.after_s, 1),
        )

    def curve(self) -> list[report.Step]:
        return [
            report.Step(
                step=step,
                success=entry[SUCCESS],
                reward=entry["reward"],
                logprob_diff_max=entry[LOGPROB_GAP],
            )
            for step, entry in enumerate(self.log, 1)
        ]

    def shown(self) -> list[str]:
        """Returns groups of both ends of the training, and one of every tenth step."""
        before, after = (_groups(some)[:SHOWN_AT_EACH_END] for some in (self.before, self.after))
        training = (_groups(step)[0] for step in self.observed[::SHOW_EVERY_STEPS])
        return [*before, *training, *after]


def _groups(rollouts: Sequence[Rollout]) -> list[str]:
    return list(dict.fromkeys(rollout.group_id for rollout in rollouts))


def _run(model: Path, output: Path, config: TrainConfig, engine_url: str | None) -> _Run:
    heldout = instances("heldout", HELDOUT_PER_FAMILY, seed=config.seed)
    run = _Run([task_for(config.program)(one) for one in heldout])
    journal = _new_journal(output / "journal.db")
    pids = {"trainer": os.getpid()}
    with ExitStack() as stack:
        if engine_url is None:
            options = ["--max-model-len", str(CONTEXT)]
            engine = stack.enter_context(
                local.engine(model, log=output / "engine.log", options=options)
            )
            engine_url, pids["engine"] = engine.url, engine.pid
        service = stack.enter_context(
            local.service(
                [engine_url],
                log=output / "service.log",
                options=["--journal", str(journal), "--shelf-sample", "1"],
            )
        )
        pids["service"] = service.pid
        client = stack.enter_context(RolloutClient(service.url))
        print(f"engine {engine_url}, service {service.url}: open it in a browser to watch")
        run.service_rss_mb = _memory_mb(service.pid, "VmRSS")
        run.before = _evaluate(client, run.heldout, "before")
        started = time.monotonic()
        run.log = train(model, service.url, output, config, observe=run.observed.append)
        run.train_s = time.monotonic() - started
        started = time.monotonic()
        run.after = _evaluate(client, run.heldout, "after")
        run.after_s = time.monotonic() - started
        page = client.page(run.shown(), title="Trajectories of the demo")
        (output / "trajectories.html").write_bytes(page)
        run.peak_memory_mb = {name: _memory_mb(pid, "VmHWM") for name, pid in pids.items()}
    return run


def _new_journal(file: Path) -> Path:
    """Removes what another run left there: its journal and its shelf."""
    for old in file.parent.glob(f"{file.name}*"):
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    return file


def _check(logs_of_run: Sequence[Path]) -> None:
    """Raises `ProRLError` if the engine or the service logged an error."""
    for log in filter(Path.exists, logs_of_run):
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
