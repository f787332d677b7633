"""Policies of other measurements, trained by VeRL. Runs in VeRL's environment.

`python -m bench.verl.other_policies POLICY OUTPUT STEPS SEED` writes OUTPUT/summary.json: `smollm2`
on the demo's tasks, `look` on pictures of a question.
"""

import json
import os
import sys
from dataclasses import asdict
from itertools import islice
from pathlib import Path

from bench.verl import learning
from bench.verl.workload import demo_tasks
from recipes.demo.warm_start import WARM_STARTS, warm_started
from recipes.math_code.offline import look as look_tasks

Settings = dict[str, object]
AT_ONCE = 8
SMOLLM2: Settings = learning.DEMO | {
    "data.train_batch_size": 6,
    "data.max_prompt_length": 192,
    "data.max_response_length": 96,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 6,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": AT_ONCE,
    "actor_rollout_ref.actor.use_dynamic_bsz": False,
    "actor_rollout_ref.actor.optim.lr": 3e-5,
    "actor_rollout_ref.rollout.n": 4,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": AT_ONCE,
    "ray_kwargs.ray_init.object_store_memory": 2**31,
}
LOOK: Settings = learning.DEMO | {
    "data.train_batch_size": 16,
    "data.max_response_length": 64,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 16,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 128,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 128,
    "actor_rollout_ref.rollout.max_model_len": look_tasks.CONTEXT,
}
TRAINED_ON, HELDOUT = 16 * 80, 200


def smollm2(output: Path, settings: Settings, seed: int) -> learning.Learned:
    policy = warm_started(output / "cache", WARM_STARTS["smollm2"]).absolute()
    tasks, threads = demo_tasks(4 * learning.DEMO_STEPS, seed=seed), os.cpu_count() or 1
    return learning.learn(policy, output, SMOLLM2 | settings, tasks, threads=threads)


def look(output: Path, settings: Settings, seed: int) -> learning.Learned:
    policy = look_tasks.policy(output / "cache", seed=seed).absolute()
    tasks = {}
    for name, count in (("train", TRAINED_ON), ("val", HELDOUT)):
        made = look_tasks.instances(name, seed=seed, is_file=False)
        tasks[name] = [one.task() for one in islice(made, count)]
    return learning.learn(policy, output, LOOK | settings, tasks)


POLICIES = {"smollm2": smollm2, "look": look}


def main(name: str, output: Path, steps: int, seed: int) -> None:
    output = output.absolute()
    last_step: Settings = {"trainer.test_freq": steps, "trainer.total_training_steps": steps}
    learned = POLICIES[name](output, last_step, seed)
    (output / "summary.json").write_text(json.dumps(asdict(learned)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
