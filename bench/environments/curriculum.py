"""What a curriculum saves, on a simulated policy: `python -m bench.environments.curriculum`.

The sampler is the service's own state machine; there is no engine. Candidates come from eight
levels, equally often. A rollout of a level succeeds with probability 1 / (1 + exp(2 (level -
skill))), and the skill grows by the same in each step, with the curriculum or without: only what a
step costs differs. A step draws 32 informative groups of 8. All groups in flight end before the
next are begun.

Leaves bench/results/curriculum.json and curriculum.png; it takes seconds.
"""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from statistics import fmean, median

from bench import result
from bench.plots.drawing import redraw
from prorl_service.sampling.sampler import Sampler
from prorl_service.schemas import Difficulty, Group, Message, Rollout, RolloutState, Task
from prorl_service.schemas.sampling import Curriculum, DrawSpec, DrawState, SamplerSpec

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
    levels: Mapping[int, int]
    """Number of groups that ended, by level."""

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
    levels = {one.difficulty.level: one.informative + one.uninformative for one in counts}
    passed_over = sum(one.passed_over for one in counts)
    return Step(sampler.draw.finished, passed_over, levels)


def _candidates(chance: random.Random) -> Iterator[Group]:
    for number in count():
        task = Task(
            task_id=f"t{number}",
            agent="simulated",
            messages=[Message(role="user", content=".")],
            difficulty=Difficulty(kind="simulated", level=chance.randrange(LEVELS)),
        )
        yield Group(group_id=f"g{number}", task=task, n=N)


@cache
def _rollout(index: int, score: float) -> Rollout:
    return Rollout(
        rollout_id=f"g.{index}",
        group_id="g",
        task_id="t",
        agent="simulated",
        index=index,
        state=RolloutState.DONE,
        reward=score,
        created_at=0,
    )


def row(name: str, runs: Sequence[Sequence[Step]]) -> dict[str, object]:
    """Medians over the seeds of a run's means."""

    def of_runs(values: Sequence[float]) -> float:
        return round(median(values), 3)

    return {
        "who": name,
        "informative_share": of_runs(
            [TARGET * STEPS / sum(step.groups for step in run) for run in runs]
        ),
        "lowest_share_of_a_step": of_runs(
            [min(step.informative_share for step in run[1:]) for run in runs]
        ),
        "rollouts_per_step": of_runs([N * fmean(step.groups for step in run) for run in runs]),
        "passed_over_per_step": of_runs([fmean(step.passed_over for step in run) for run in runs]),
    }


def series(runs: Mapping[str, Sequence[Step]]) -> dict[str, object]:
    """Returns what the picture shows: of each run, and the skill that both have."""
    of_runs = {
        name: {
            "shares": [round(step.informative_share, 3) for step in run],
            "levels": [
                [round(step.levels.get(level, 0) / step.groups, 3) for step in run]
                for level in range(LEVELS)
            ],
        }
        for name, run in runs.items()
    }
    return {"skill": [round(_skill(step), 3) for step in range(STEPS)], **of_runs}


def main() -> None:
    runs = {
        "off": [train(None, seed) for seed in SEEDS],
        "on": [train(Curriculum(seed=seed), seed) for seed in SEEDS],
    }
    assert runs["on"][0] == train(Curriculum(seed=SEEDS[0]), SEEDS[0]), "it is not deterministic"
    rows = [row(name, own) for name, own in runs.items()]
    off, on = rows
    headline = {
        "informative_share_off": off["informative_share"],
        "informative_share_on": on["informative_share"],
    }
    shown = series({name: own[0] for name, own in runs.items()})
    result.write("curriculum", rows, headline, series=shown, room="bench.environments")
    redraw("curriculum")


if __name__ == "__main__":
    main()
