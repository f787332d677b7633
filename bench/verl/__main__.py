"""VeRL's real trainer on CPU, on rollouts of the service: `scripts/bench verl`.

`mix`: its own filter of groups next to the service's sampler, on the same seed and mix of tasks,
each twice. `demo`: the demo's task. `pi`: the same task with an unmodified pi as the agent. Each
takes a quarter of an hour. Needs the environment of `scripts/setup-verl`, with
`recipes/common/verl_cpu` as the device, and for pi `prorl harnesses install pi`.
"""

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import httpx

from bench import frame
from bench.verl.workload import GROUP_SIZE, write_demo, write_mix
from prorl_service import local
from prorl_service.net.credentials import authorization
from recipes.demo.warm_start import WarmStart, warm_started
from tests.verl.data import build_policy
from tests.verl.training import CompletedRun, run_main_ppo

SERVICE = ["--sandbox", "bubblewrap", "--agent", "tests.verl.mix_agent:MixAgent"]
PRORL = {"--config-name": "prorl_ppo_trainer", "rollout": "prorl"}
DIFFERENCE = "training/rollout_probs_diff_max"
HELDOUT = re.compile(r"val-core/.*/acc/mean@1")
BUILT_IN, OURS, CARRIED = "VeRL's filter", "ours, on-policy", "ours, one update old at most"
SEEDS, MIX_STEPS, GROUPS_PER_STEP = 2, 4, 8
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
DEMO_STEPS = 60
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
    "trainer.test_freq": DEMO_STEPS,
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


def mix(quick: bool) -> frame.Found:
    with TemporaryDirectory(prefix="prorl-bench-") as name:
        policy = build_policy(Path(name) / "policy")
        ways = [OURS] if quick else WAYS
        turns = {way: partial(_mixed, way, policy, Path(name)) for way in ways}
        found = frame.alternate(turns, 1 if quick else SEEDS)
    rows = [row for own in found.values() for row in own]
    on_policy = (row["probs_diff_max"] for row in rows if row["who"] != CARRIED)
    return frame.Found(rows, {"rollout_probs_diff_max": max(on_policy)})


def _mixed(way: str, policy: Path, scratch: Path, seed: int) -> frame.Row:
    """Runs one way. The rollouts of all tasks in order, up to the last informative one that is
    trained on, are needed; others that were begun are wasted. Rollouts that are carried over are
    not, except those of groups that became too old: those left at the end would have been used."""
    directory = scratch / f"{seed}-{list(WAYS).index(way)}"
    directory.mkdir()
    informative = MIX_STEPS * GROUPS_PER_STEP
    needed = GROUP_SIZE * write_mix(directory, seed, informative)
    with local.service([], log=directory / "service.log", options=SERVICE) as service:
        run = _train(directory, policy, MIX | WAYS[way], service.url)
        begun = _ended(service.url)
    wasted = begun - needed
    if way == CARRIED:
        wasted = GROUP_SIZE * round(sum(run.values("prorl/sampling/stale")))
    return {
        "who": way,
        "seed": seed,
        "begun": begun,
        "needed": needed,
        "wasted_per_step": round(wasted / MIX_STEPS, 2),
        "generation_s_per_step": round(fmean(run.values("timing_s/gen")), 2),
        "probs_diff_max": max(run.values(DIFFERENCE)),
    }


def _ended(url: str) -> int:
    """Returns the number of rollouts that are done or cancelled."""
    text = httpx.get(f"{url}/metrics", headers=authorization(url), trust_env=False).text
    counts = re.findall(r'prorl_rollouts_ended_total\{state="(?:done|cancelled)"\} ([\d.]+)', text)
    return round(sum(map(float, counts)))


def _train(
    directory: Path, policy: Path, overrides: Mapping[str, object], url: str
) -> CompletedRun:
    (directory / "model").symlink_to(policy)
    return run_main_ppo(directory, {**PRORL, **overrides, "prorl.url": url}, timeout_s=3600)


def learning(
    prefix: str, settings: Mapping[str, object], program: str | None, quick: bool
) -> frame.Found:
    few = {"trainer.total_training_steps": 1, "trainer.test_freq": 1} if quick else {}
    with TemporaryDirectory(prefix="prorl-bench-") as name:
        directory = Path(name)
        cache = Path("outputs/demo/cache").absolute()
        policy = warm_started(cache, WarmStart(seed=0), program=program)
        write_demo(directory, 4 * DEMO_STEPS, program)
        with local.service([], log=directory / "service.log", options=SERVICE) as service:
            run = _train(directory, policy, {**settings, **few}, service.url)
    heldout = [
        value for step in run.metrics for name, value in step.items() if HELDOUT.fullmatch(name)
    ]
    figures = {
        "demo_rollout_probs_diff_max": max(run.values(DIFFERENCE)),
        "steps": settings["trainer.total_training_steps"],
        "heldout_first": heldout[0],
        "heldout_last": heldout[-1],
    }
    return frame.Found([], {f"{prefix}{name}": value for name, value in figures.items()})


if __name__ == "__main__":
    frame.run(
        "verl",
        {
            "mix": mix,
            "demo": partial(learning, "", DEMO, None),
            "pi": partial(learning, "pi_", PI, "pi"),
        },
    )
