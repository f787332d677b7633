"""VeRL's real trainer on CPU, on rollouts of the service: `scripts/bench verl`.

`mix`: its own filter of groups next to the service's sampler, on the same seed and mix of tasks,
each twice. `demo`: the demo's task. `pi`: the same task with an unmodified pi as the agent. Each
takes a quarter of an hour. Needs the environment of `scripts/setup-verl`, with
`recipes/common/verl_cpu` as the device, and for pi `prorl harnesses install pi`.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from bench import frame
from bench.verl import learning
from bench.verl.workload import GROUP_SIZE, demo_tasks, write_mix
from prorl_service import local
from recipes.demo.warm_start import WarmStart, warm_started
from tests.verl.data import build_policy

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
PI_STEPS = 30
PI: dict[str, object] = learning.DEMO | {
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
    with local.service([], log=directory / "service.log", options=learning.SERVICE) as service:
        run = learning.train(directory, policy, MIX | WAYS[way], service.url)
        begun = frame.rollouts_ended(service.url)
    wasted = begun - needed
    if way == CARRIED:
        wasted = GROUP_SIZE * round(sum(run.values("prorl/sampling/stale")))
    return {
        "who": way,
        "seed": seed,
        "wasted_per_step": round(wasted / MIX_STEPS, 2),
        "generation_s_per_step": round(fmean(run.values("timing_s/gen")), 2),
        "probs_diff_max": max(run.values(learning.DIFFERENCE)),
    }


def demo(
    prefix: str, settings: Mapping[str, object], program: str | None, quick: bool
) -> frame.Found:
    few = {"trainer.total_training_steps": 1, "trainer.test_freq": 1} if quick else {}
    cache = Path("outputs/demo/cache").absolute()
    policy = warm_started(cache, WarmStart(seed=0), program=program)
    with TemporaryDirectory(prefix="prorl-bench-") as name:
        tasks = demo_tasks(4 * learning.DEMO_STEPS, program)
        learned = learning.learn(policy, Path(name), {**settings, **few}, tasks)
    figures = {
        "demo_rollout_probs_diff_max": learned.probs_diff_max,
        "steps": settings["trainer.total_training_steps"],
        "heldout_first": learned.heldout[0],
        "heldout_last": learned.heldout[-1],
    }
    return frame.Found([], {f"{prefix}{name}": value for name, value in figures.items()})


if __name__ == "__main__":
    frame.run(
        "verl",
        {
            "mix": mix,
            "demo": partial(demo, "", learning.DEMO, None),
            "pi": partial(demo, "pi_", PI, "pi"),
        },
    )
