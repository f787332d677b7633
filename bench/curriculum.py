"""What a curriculum saves, on a simulated policy. Takes seconds.

The sampler is the service's own state machine; there is no engine. Candidates come from eight
levels, equally often. A rollout of a level succeeds with probability 1 / (1 + exp(2 (level -
skill))), and the skill grows by the same in each step, with the curriculum or without: only what a
step costs differs. A step draws 32 informative groups of 8. All groups in flight end before the
next are begun.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from statistics import fmean, median

from bench import frame
from prorl_service.sampling.sampler import Sampler
from prorl_service.schemas import Difficulty, Group, Rollout
from prorl_service.schemas.sampling import Curriculum, DrawSpec, DrawState, SamplerSpec
from tests import builders

LEVELS = 8
STEPS = 60
TARGET, N = 32, 8
SLOTS = 256
FIRST_SKILL, LAST_SKILL = 0.0, 6.0
SHARPNESS = 2.0
SEEDS = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class Step:
    groups: int
    """Groups that ended."""
    passed_over: int

    @property
    def informative_share(self) -> float:
        return TARGET / self.groups


def train(curriculum: Curriculum | None, seed: int) -> list[Step]:
    # All groups fit in flight, as they would where a trainer waits for them.
    spec = SamplerSpec(curriculum=curriculum, surplus="cancel", oversubscription=1)
    sampler = Sampler("s", spec, slots=SLOTS)
    chance = random.Random(seed)
    candidates = _candidates(random.Random(seed + 1000))
    return [_step(sampler, candidates, chance, number) for number in range(STEPS)]


def _skill(step: int) -> float:
    return FIRST_SKILL + (LAST_SKILL - FIRST_SKILL) * step / (STEPS - 1)


def _step(
    sampler: Sampler, candidates: Iterator[Group], chance: random.Random, number: int
) -> Step:
    skill = _skill(number)
    sampler.open_draw(f"d{number}", DrawSpec(target=TARGET), version=0)
    assert sampler.draw is not None
    while sampler.draw.state is DrawState.OPEN:
        sampler.add([next(candidates) for _ in range(sampler.status(0).wanted)])
        for one in list(sampler.begin()):
            difficulty = one.group.task.difficulty
            assert difficulty is not None
            chances = 1 / (1 + math.exp(SHARPNESS * (difficulty.level - skill)))
            for index in range(N):
                score = float(chance.random() < chances)
                sampler.rollout_ended(one.name, one.attempt, _rollout(index, score))
        sampler.settle(0)
        sampler.changed.clear()  # nothing is written down
        sampler.released.clear()
    counts = sampler.draw.difficulties
    return Step(sampler.draw.finished, sum(one.passed_over for one in counts))


def _candidates(chance: random.Random) -> Iterator[Group]:
    for number in count():
        difficulty = Difficulty(kind="simulated", level=chance.randrange(LEVELS))
        task = builders.task(f"t{number}", difficulty=difficulty)
        yield Group(group_id=f"g{number}", task=task, n=N)


@cache
def _rollout(index: int, score: float) -> Rollout:
    return builders.rollout(f"g.{index}", reward=score)


def row(name: str, runs: Sequence[Sequence[Step]]) -> frame.Row:
    """Medians over the seeds of a run's means."""

    def of_runs(value: Callable[[Sequence[Step]], float]) -> float:
        return round(median(map(value, runs)), 3)

    return {
        "who": name,
        "informative_share": of_runs(lambda run: TARGET * STEPS / sum(step.groups for step in run)),
        "lowest_share_of_a_step": of_runs(
            lambda run: min(step.informative_share for step in run[1:])
        ),
        "rollouts_per_step": of_runs(lambda run: N * fmean(step.groups for step in run)),
        "passed_over_per_step": of_runs(lambda run: fmean(step.passed_over for step in run)),
    }


def measure(quick: bool) -> frame.Found:
    seeds = SEEDS[:1] if quick else SEEDS
    runs = {
        "off": [train(None, seed) for seed in seeds],
        "on": [train(Curriculum(seed=seed), seed) for seed in seeds],
    }
    off, on = rows = [row(name, own) for name, own in runs.items()]
    headline = {
        "informative_share_off": off["informative_share"],
        "informative_share_on": on["informative_share"],
    }
    return frame.Found(rows, headline)


if __name__ == "__main__":
    frame.run("curriculum", {"curriculum": measure})
