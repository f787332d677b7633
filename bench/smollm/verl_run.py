"""SmolLM2 learns the demo's tasks by VeRL's trainer. Runs in VeRL's environment.

`python -m bench.smollm.verl_run OUTPUT STEPS` writes OUTPUT/summary.json.
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from bench.verl import learning
from recipes.demo.warm_start import WARM_STARTS, warm_started

GROUPS, GROUP_SIZE, AT_ONCE = 6, 4, 8
SETTINGS: dict[str, object] = learning.DEMO | {
    "data.train_batch_size": GROUPS,
    "data.max_prompt_length": 192,
    "data.max_response_length": 96,
    "actor_rollout_ref.actor.ppo_mini_batch_size": GROUPS,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": AT_ONCE,
    "actor_rollout_ref.actor.use_dynamic_bsz": False,
    "actor_rollout_ref.actor.optim.lr": 3e-5,
    "actor_rollout_ref.rollout.n": GROUP_SIZE,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": AT_ONCE,
    "ray_kwargs.ray_init.object_store_memory": 2**31,
}


def main(output: Path, steps: int) -> None:
    output = output.absolute()
    policy = warm_started(output / "cache", WARM_STARTS["smollm2"])
    few = {"trainer.test_freq": steps, "trainer.total_training_steps": steps}
    threads = os.cpu_count() or 1
    learned = learning.learn(policy.absolute(), output, SETTINGS | few, threads=threads)
    (output / "summary.json").write_text(json.dumps(asdict(learned)) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
