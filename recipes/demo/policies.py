"""The two policies of the demo, tiny and pretrained: how each is started and trained.

Makes and trains nothing.
"""

from dataclasses import replace

from recipes.demo.train import TrainConfig
from recipes.demo.warm_start import Policy

CONFIGS: dict[Policy, TrainConfig] = {
    "tiny": TrainConfig(),
    "smollm2": TrainConfig(
        steps=12,
        groups_per_step=6,
        rollouts_per_group=4,
        rollouts_at_once=8,
        learning_rate=3e-5,
    ),
}
WITH_HARNESS: dict[Policy, TrainConfig] = {
    "tiny": replace(CONFIGS["tiny"], groups_per_step=4, updates_per_step=4, learning_rate=5e-4),
    "smollm2": CONFIGS["smollm2"],
}
"""A harness takes seconds of CPU time to start, in each rollout: fewer of them, used more."""
AGENTS: dict[Policy, str] = {"tiny": "A tiny agent", "smollm2": "SmolLM2-135M"}
