"""The workload, the same for all ways: its tasks, and what each attempt at one would be.

The length of a rollout and its success are a pure function of the seed, the task's number, the
attempt and the index. No task comes twice, so nothing is gained by postponing uninformative ones.
Never-solved tasks take longer than solved ones, and siblings are alike; the tail is that of agents
(most end soon, some continue to the limit).
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

from bench.nodes.agent import Calls
from prorl_service.agents.base import RolloutContext, Verdict
from prorl_service.schemas import Group, Message, Task

MAX_TURNS = 40
TASK_SIGMA, ROLLOUT_SIGMA = 0.5, 0.6
"""Standard deviations of the logarithm of the turns: among tasks, and among the rollouts of one."""
HARDNESS = 0.5
"""Logarithm of the ratio of turns, of never-solved tasks to always-solved ones."""
AGENT = "dapo"


@dataclass(frozen=True, slots=True)
class World:
    """Tasks that are not of the two shares succeed with a probability of 0.1 to 0.9, uniformly."""

    never_solved: float = 0.30
    always_solved: float = 0.25
    median_turns: float = 3


WORLD = World()


@dataclass(frozen=True, slots=True)
class Plan:
    """One step's groups have twice as many rollouts as there are workers."""

    steps: int = 4
    target: int = 8
    """Informative groups of a step."""
    n: int = 8
    run_workers: int = 32
    ready_rollouts: int = 8
    latency_s: float = 0.1
    """Mean duration of a model call."""
    pause_s: float = 0.6
    """Duration of training, after each step. Weights are loaded at its end."""

    @property
    def slots(self) -> int:
        """Rollouts to keep in flight: those that run and those ready for the next free worker."""
        return self.run_workers + self.ready_rollouts


@dataclass(frozen=True, slots=True)
class End:
    turns: int
    reward: float


def end(seed: int, rollout_id: str, world: World = WORLD) -> End:
    """Returns the end of a rollout `...cNUMBER:ATTEMPT.INDEX`."""
    group_id, _, index = rollout_id.rpartition(".")
    name, attempt = group_id.split(":")[-2:]
    of_task = random.Random(f"{seed} {name}")
    probability, pace = _success_probability(of_task, world), of_task.gauss(0, TASK_SIGMA)
    own = random.Random(f"{seed} {name} {attempt} {index}")
    pace += own.gauss(0, ROLLOUT_SIGMA) + HARDNESS * (0.5 - probability)
    turns = min(MAX_TURNS, max(1, round(world.median_turns * math.exp(pace))))
    return End(turns, float(own.random() < probability))


def _success_probability(rng: random.Random, world: World) -> float:
    kind, probability = rng.random(), rng.uniform(0.1, 0.9)
    if kind < world.never_solved:
        return 0.0
    return 1.0 if kind < world.never_solved + world.always_solved else probability


def ends(seed: int, group_id: str, n: int, world: World = WORLD) -> list[End]:
    return [end(seed, f"{group_id}.{index}", world) for index in range(n)]


def is_informative(rewards: list[float]) -> bool:
    return min(rewards) < max(rewards)


def candidates(seed: int, n: int) -> Iterator[Group]:
    """Yields groups endlessly, in the order of the data. An attempt's id is the group's id here, a
    colon and the attempt's number."""
    for number in count():
        task = Task(
            task_id=f"t{number}",
            agent=AGENT,
            messages=[Message(role="user", content="Go on.")],
            data={"seed": seed},
        )
        yield Group(group_id=f"c{number}", task=task, n=n)


def attempted(group: Group, attempt: int) -> Group:
    name = group.group_id.partition(":")[0]
    return group.model_copy(update={"group_id": f"{name}:{attempt}"})


class WorldAgent(Calls):
    """Makes as many turns as `world` says."""

    name: ClassVar[str] = AGENT

    def calls(self, rollout: RolloutContext) -> int:
        return self._end(rollout).turns

    async def eval(self, rollout: RolloutContext) -> Verdict:
        return Verdict(self._end(rollout).reward)

    def _end(self, rollout: RolloutContext) -> End:
        return end(int(str(self.task.data["seed"])), rollout.rollout_id)
