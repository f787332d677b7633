"""Demonstrations that the warm start imitates: whole rollouts.

Demonstrations teach syntax (how to call the tool, when to stop) and copying (the answer is what the
command printed). They do not teach the answer: only `RIGHT_SHARE` of them run the right command.
Finding out which one earns reward is left to reinforcement learning.
"""

from dataclasses import dataclass
from random import Random

from prorl_service.agents.math import MathAgent
from recipes.common.training.imitation import Transcript, tool_call
from recipes.demo.tasks import Attempt, Instance, instances

RIGHT_SHARE = 0.15
PER_FAMILY = 720
"""Instances to choose from: all those outside the held-out split."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """An attempt at an instance; its output is copied as the final answer, right or wrong."""

    instance: Instance
    attempt: Attempt

    def transcript(self) -> Transcript:
        return Transcript(
            prompt=MathAgent(self.instance.task()).prompt(),
            replies=(tool_call("bash", {"command": self.attempt.command}), self.attempt.output),
            answers=(self.attempt.output,),
        )


def demonstrations(count: int, *, seed: int) -> list[Demonstration]:
    rng = Random(f"demonstrations/{seed}")
    chosen = rng.choices(instances("train", PER_FAMILY, seed=seed), k=count)
    return [Demonstration(instance, _attempt(instance, rng)) for instance in chosen]


def _attempt(instance: Instance, rng: Random) -> Attempt:
    return instance.right if rng.random() < RIGHT_SHARE else rng.choice(instance.wrong)
