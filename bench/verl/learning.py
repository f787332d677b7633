"""VeRL's trainer on the demo's tasks, from a warm-started policy that is validated at both ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.verl.workload import Tasks, write_tasks
from prorl_service import local
from tests.verl.training import CompletedRun, run_main_ppo

SERVICE = ["--sandbox", "bubblewrap", "--agent", "tests.verl.mix_agent:MixAgent"]
PRORL = {"--config-name": "prorl_ppo_trainer", "rollout": "prorl"}
DIFFERENCE = "training/rollout_probs_diff_max"
SUCCESS = "prorl/reward/correct"
STEP_S = "timing_s/step"
HELDOUT = "val-prorl/reward/correct"
TIMEOUT_S = 7200
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


@dataclass(frozen=True, slots=True)
class Learned:
    heldout: list[float]
    """Success on held-out tasks, before and after."""
    success: list[float]
    """Success in training, of each step."""
    step_s: list[float]
    probs_diff_max: float
    """Largest difference of a token's probability between engine and trainer."""


def learn(
    policy: Path,
    output: Path,
    settings: Mapping[str, object],
    tasks: Tasks,
    *,
    threads: int = 1,
) -> Learned:
    """`threads`: of the trainer."""
    write_tasks(output, tasks)
    with local.service([], log=output / "service.log", options=SERVICE) as service:
        run = train(output, policy, settings, service.url, threads=threads)
    return learned(run.metrics)


def learned(metrics: Sequence[Mapping[str, float]]) -> Learned:
    """Returns what VeRL has logged; its first entry is the validation before training."""
    steps = [step for step in metrics if STEP_S in step]
    return Learned(
        [step[HELDOUT] for step in metrics if HELDOUT in step],
        [step[SUCCESS] for step in steps],
        [step[STEP_S] for step in steps],
        max(step[DIFFERENCE] for step in steps),
    )


def train(
    directory: Path, policy: Path, overrides: Mapping[str, object], url: str, *, threads: int = 1
) -> CompletedRun:
    (directory / "model").symlink_to(policy)
    settings = {**PRORL, **overrides, "prorl.url": url}
    env = {"OMP_NUM_THREADS": str(threads)}
    return run_main_ppo(directory, settings, env, timeout_s=TIMEOUT_S)
