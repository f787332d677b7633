"""VeRL's real trainer on CPU, on rollouts of the service: `scripts/bench verl`.

`mix`: its own filter of groups next to the service's sampler, on the same seed and mix of tasks,
each twice. `demo`: the demo's task, whose held-out success is drawn to bench/results/verl.png.
Each takes a quarter of an hour. `pi`: the same task with an unmodified pi as the agent
(verl_pi.png). Each may be run alone: the others keep their figures then. Needs the
environment of `scripts/setup-verl`, with `recipes/common/verl_cpu` as the device, and for pi
`prorl harnesses install pi`.
"""

import argparse
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory

import httpx
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from bench import result
from bench.verl.workload import GROUP_SIZE, write_demo, write_mix
from prorl_service import local
from prorl_service.net.credentials import authorization
from recipes.demo.warm_start import WarmStart, warm_started
from tests.verl.data import build_policy
from tests.verl.training import CompletedRun, run_main_ppo

SERVICE = ["--sandbox", "bubblewrap", "--agent", "bench.verl.agent:MixAgent"]
PRORL = {"--config-name": "prorl_ppo_trainer", "rollout": "prorl"}
DIFFERENCE = "training/rollout_probs_diff_max"
BUILT_IN, OURS, CARRIED = "VeRL's filter", "ours, on-policy", "ours, one update old at most"
SEEDS = (0, 1)
MIX_STEPS, GROUPS_PER_STEP = 4, 8
MIX: dict[str, object] = {
    "data.shuffle": False,
    "data.train_batch_size": GROUPS_PER_STEP,
    "actor_rollout_ref.actor.ppo_mini_batch_size": GROUPS_PER_STEP,
    "actor_rollout_ref.rollout.n": GROUP_SIZE,
    "prorl.max_tokens_per_turn": 8,
    "algorithm.filter_groups.enable": True,
    "algorithm.filter_groups.metric": "acc",
    "trainer.total_training_steps": MIX_STEPS,
}
WAYS: dict[str, dict[str, object]] = {
    BUILT_IN: {"trainer.v1.sampler.custom_sampler.name": "null"},
    OURS: {},
    CARRIED: {"prorl.dynamic_sampling.surplus": "carry"},
}
DEMO_STEPS, EVERY_STEPS = 60, 10
DEMO: dict[str, object] = {
    "prorl.limits.max_turns": 2,
    "data.train_batch_size": 8,
    "data.max_response_length": 128,
    "data.max_prompt_length": 256,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 8,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 64,
    "actor_rollout_ref.actor.clip_ratio_high": 0.28,
    "actor_rollout_ref.rollout.n": 8,
    "actor_rollout_ref.rollout.max_model_len": 512,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 64,
    "actor_rollout_ref.rollout.val_kwargs.temperature": 1.0,
    "trainer.val_before_train": True,
    "trainer.test_freq": EVERY_STEPS,
    "trainer.total_training_steps": DEMO_STEPS,
}
PI_STEPS = 30
PI: dict[str, object] = DEMO | {
    # A start of pi takes a second of CPU time: few rollouts, each trained on four times.
    "data.train_batch_size": 4,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 4,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 32,
    "actor_rollout_ref.actor.ppo_epochs": 4,
    "actor_rollout_ref.actor.optim.lr": 5e-4,
    "trainer.test_freq": PI_STEPS,
    "trainer.total_training_steps": PI_STEPS,
}
REWARD, HELDOUT = "critic/score/mean", re.compile(r"val-core/.*/acc/mean@1")


@dataclass(frozen=True, slots=True)
class Ended:
    """Numbers of rollouts of one run, by their end."""

    done: int
    cancelled: int


def mix(name: str, seed: int, policy: Path, directory: Path) -> dict[str, object]:
    """Runs one way. The rollouts of all tasks in order, up to the last informative one that is
    trained on, are needed; others that were begun are wasted. Rollouts that are carried over are
    not, except those of groups that became too old: those left at the end would have been used."""
    tasks = write_mix(directory, 400, seed=seed, informative=MIX_STEPS * GROUPS_PER_STEP)
    overrides = PRORL | MIX | WAYS[name]
    with local.service([], log=directory / "service.log", options=SERVICE) as service:
        run = _train(directory, policy, {**overrides, "prorl.url": service.url})
        ended = _ended(service.url)
    begun, needed = ended.done + ended.cancelled, GROUP_SIZE * tasks
    wasted = begun - needed
    if name == CARRIED:
        wasted = GROUP_SIZE * round(sum(run.values("prorl/sampling/stale")))
    return {
        "who": name,
        "seed": seed,
        "begun": begun,
        "needed": needed,
        "wasted_per_step": round(wasted / MIX_STEPS, 2),
        "generation_s_per_step": round(fmean(run.values("timing_s/gen")), 2),
        "probs_diff_max": max(run.values(DIFFERENCE)),
    }


def _ended(url: str) -> Ended:
    text = httpx.get(f"{url}/metrics", headers=authorization(url), trust_env=False).text
    counts = dict(re.findall(r'prorl_rollouts_ended_total\{state="(\w+)"\} ([\d.]+)', text))
    return Ended(*(int(float(counts.get(state, 0))) for state in ("done", "cancelled")))


def _train(directory: Path, policy: Path, overrides: Mapping[str, object]) -> CompletedRun:
    (directory / "model").symlink_to(policy)
    return run_main_ppo(directory, overrides, timeout_s=3600)


def demo(
    directory: Path, settings: Mapping[str, object], program: str | None = None
) -> CompletedRun:
    directory.mkdir()
    cache = Path("outputs/demo/cache").absolute()
    policy = warm_started(cache, WarmStart(seed=0), program=program)
    write_demo(directory, per_family=4 * DEMO_STEPS, heldout_per_family=50, seed=0, program=program)
    with local.service([], log=directory / "service.log", options=SERVICE) as service:
        return _train(directory, policy, {**PRORL, **settings, "prorl.url": service.url})


def curve(run: CompletedRun) -> list[tuple[float, float]]:
    """Returns steps and held-out success."""
    return [
        (step.get("training/global_step", 0), value)
        for step in run.metrics
        for name, value in step.items()
        if HELDOUT.fullmatch(name)
    ]


def draw(run: CompletedRun, path: Path, title: str) -> None:
    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    rewards = [step[REWARD] for step in run.metrics if REWARD in step]
    axes.plot(range(1, len(rewards) + 1), rewards, color="tab:gray", label="reward, training")
    axes.plot(*zip(*curve(run), strict=True), marker="o", label="success, held-out tasks")
    axes.set_title(title)
    axes.set_xlabel("step")
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", choices=("mix", "demo", "pi"))
    part = parser.parse_args().part
    rows: list[dict[str, object]] = []
    headline: dict[str, object] = {}
    with TemporaryDirectory(prefix="prorl-bench-") as scratch:
        if part in (None, "mix"):
            rows = _mix_rows(Path(scratch))
            headline |= _mix_headline(rows)
        if part in (None, "demo"):
            run = demo(Path(scratch) / "demo", DEMO)
            title = "VeRL trains the demo's agent through the service"
            draw(run, result.RESULTS / "verl.png", title)
            headline |= _demo_headline(run)
        if part in (None, "pi"):
            run = demo(Path(scratch) / "pi", PI, "pi")
            draw(run, result.RESULTS / "verl_pi.png", "VeRL trains an unmodified pi")
            headline |= {f"pi_{name}": value for name, value in _demo_headline(run).items()}
    if part:
        before = json.loads((result.RESULTS / "verl.json").read_text())
        rows, headline = rows or before["rows"], before["headline"] | headline
    result.write("verl", rows, headline)


def _mix_rows(scratch: Path) -> list[dict[str, object]]:
    policy = build_policy(scratch / "policy")
    rows: list[dict[str, object]] = []
    for seed in SEEDS:
        for name in WAYS:
            directory = scratch / f"{seed}-{len(rows)}"
            directory.mkdir()
            rows.append(mix(name, seed, policy, directory))
            print(rows[-1], flush=True)
    return rows


def _mix_headline(rows: list[dict[str, object]]) -> dict[str, object]:
    return {
        "rollout_probs_diff_max": max(
            float(str(row["probs_diff_max"])) for row in rows if row["who"] != CARRIED
        ),
        "wasted_rollouts_vs_builtin": _ratio(rows, "wasted_per_step", OURS),
        "generation_s_per_step_vs_builtin": _ratio(rows, "generation_s_per_step", OURS),
        "wasted_rollouts_vs_builtin_carried": _ratio(rows, "wasted_per_step", CARRIED),
        "generation_s_per_step_vs_builtin_carried": _ratio(rows, "generation_s_per_step", CARRIED),
    }


def _demo_headline(run: CompletedRun) -> dict[str, object]:
    success = curve(run)
    rewards = [step[REWARD] for step in run.metrics if REWARD in step]
    return {
        "demo_rollout_probs_diff_max": max(
            step[DIFFERENCE] for step in run.metrics if DIFFERENCE in step
        ),
        "steps": len(rewards),
        "reward_first": round(rewards[0], 3),
        "reward_last": round(rewards[-1], 3),
        "heldout_first": success[0][1],
        "heldout_last": success[-1][1],
    }


def _ratio(rows: list[dict[str, object]], column: str, who: str) -> float:
    """Returns the median over the seeds."""

    def values(name: str) -> list[float]:
        return [float(str(row[column])) for row in rows if row["who"] == name]

    return round(median(a / b for a, b in zip(values(who), values(BUILT_IN), strict=True)), 3)


if __name__ == "__main__":
    main()
