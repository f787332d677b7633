"""Helpers of the tests of a sampler, and a world of random events around one."""

import random
from itertools import chain
from statistics import fmean

from prorl_service.errors import EvaluatorError
from prorl_service.sampling.filter import GroupState, Scores, outcome
from prorl_service.sampling.sampler import Sampler
from prorl_service.schemas import Difficulty, Group, Message, Rollout, RolloutState, Task
from prorl_service.schemas.sampling import Draw, DrawSpec, DrawState, DroppedGroup
from tests import builders

FAILURE = EvaluatorError("it failed").info()


def group(name: str, n: int = 4, task_id: str | None = None) -> Group:
    messages = [Message(role="user", content=".")]
    return Group(
        group_id=name, n=n, task=Task(task_id=task_id or name, agent="a", messages=messages)
    )


def rollout(index: int, score: float | None, version: int | None = 0) -> Rollout:
    return builders.rollout(
        f"g.{index}",
        state=RolloutState.FAILED if score is None else RolloutState.DONE,
        reward=score,
        error=FAILURE if score is None else None,
        oldest_policy_version=version,
    )


class World:
    """A world that runs a sampler's groups in random order, and checks its invariants."""

    def __init__(self, sampler: Sampler, chance: random.Random) -> None:
        self.sampler = sampler
        self.chance = chance
        self.version = 0
        self.is_told = chance.random() < 0.5
        """True if the service knows the version; otherwise the trainer gives it with each draw."""
        self.made = 0
        self.running: dict[tuple[str, int], dict[int, int]] = {}
        """Versions with which the unended rollouts of each attempt began, keyed by index."""
        self.scores: dict[tuple[str, int], dict[int, float | None]] = {}
        self.oldest: dict[tuple[str, int], int] = {}
        self.given: list[str] = []
        self.dropped: dict[str, list[DroppedGroup]] = {}
        """Dropped groups, keyed by draw."""
        self.n = 4

    def top_up(self) -> None:
        for _ in range(min(self.chance.randint(0, 6), self.sampler.status(0).wanted)):
            task = f"t{self.chance.randint(0, 9)}"
            made = group(f"g{self.made}", self.n, task)
            level = Difficulty(kind="world", level=self.made % 3)
            update = {
                "difficulty": level if self.made % 5 else None,
                "solution": ["One.", "Two."] if self.made % 2 else None,
            }
            task_with_level = made.task.model_copy(update=update)
            self.sampler.add([made.model_copy(update={"task": task_with_level})])
            self.made += 1

    def open_draw(self, draw_id: str) -> None:
        spec = DrawSpec(target=2, policy_version=None if self.is_told else self.version)
        self.sampler.open_draw(draw_id, spec, version=self.known_version())

    def known_version(self) -> int:
        return self.version if self.is_told else 0

    def step(self) -> None:
        self.sampler.settle(self.known_version())
        for released in self.sampler.released:
            _, name, attempt = released.group_id.split(":")
            self.running.pop((name, int(attempt)), None)
        self.sampler.released.clear()
        for one in self.sampler.begin():
            key = (one.name, one.attempt)
            assert key not in self.scores
            assert one.name not in [name for (name, _), left in self.running.items() if left]
            self.running[key] = dict.fromkeys(range(self.n), self.version)
            self.scores[key] = {}

    def end_one(self) -> None:
        keys = [key for key, left in self.running.items() if left]
        if not keys:
            return
        key = self.chance.choice(keys)
        index = self.chance.choice(list(self.running[key]))
        version = self.running[key].pop(index)
        kind = int(key[0].removeprefix("g")) % 3
        score = {0: 1.0, 1: 0.0, 2: float(self.chance.randint(0, 1))}[kind]
        ended = None if self.chance.random() < 0.1 else score
        self.scores[key][index] = ended
        self.oldest[key] = min(version, self.oldest.get(key, version))
        self.sampler.rollout_ended(*key, rollout(index, ended, version))

    def check_draw(self) -> None:
        draw = self.sampler.draw
        assert draw is not None
        assert len(draw.groups) <= draw.spec.target
        for one in draw.groups:
            _, name, attempt = one.group_id.split(":")
            key = (name, int(attempt))
            scores = Scores.of(*self.scores[key].values())
            assert len(scores) == self.n
            assert outcome(scores, self.n, self.sampler.spec.filter) is GroupState.INFORMATIVE
        if draw.state is not DrawState.OPEN:
            self.check_given(draw)
        before = self.dropped.setdefault(draw.draw_id, [])
        assert draw.dropped[: len(before)] == before
        self.dropped[draw.draw_id] = list(draw.dropped)

    def check_given(self, draw: Draw) -> None:
        for one in draw.groups:
            _, name, attempt = one.group_id.split(":")
            assert one.group_id not in self.given
            self.given.append(one.group_id)
            limit = self.drawn_at() - self.sampler.spec.max_staleness
            assert self.oldest[name, int(attempt)] >= limit

    def drawn_at(self) -> int:
        """Returns the newest version that the sampler was given."""
        assert self.sampler.draw is not None
        return max(self.known_version(), self.sampler.draw.spec.policy_version or 0)

    def check_ends(self) -> None:
        """Asserts that each ended candidate is in one draw, or waits to be reported by the next."""
        draw = self.sampler.draw
        assert draw is not None
        assert draw.dropped == self.dropped[draw.draw_id], "the draw changed after its end"
        dropped = [*chain(*self.dropped.values()), *self.sampler.dropped]
        ended = [*(one.split(":")[1] for one in self.given), *(one.candidate for one in dropped)]
        assert len(set(ended)) == len(ended)
        now = self.sampler.status(0)
        assert len(ended) == now.given + now.uninformative + now.failed + now.passed_over
        if self.sampler.spec.curriculum is None:
            assert now.passed_over == 0
        for one in dropped:
            if one.reason == "passed_over":
                assert one.candidate not in [name for name, _ in self.scores]
                continue
            attempt = max(attempt for name, attempt in self.scores if name == one.candidate)
            scores = Scores.of(*self.scores[one.candidate, attempt].values())
            assert outcome(scores, self.n, self.sampler.spec.filter).value == one.reason
            known = scores.known()
            assert one.score_mean == (fmean(known) if known else None)
            assert one.error == (FAILURE if one.reason == "failed" else None)

    def check_counts(self) -> None:
        now = self.sampler.status(0)
        at_end = now.given + now.uninformative + now.failed + now.passed_over
        assert at_end + now.waiting + now.under_way + now.informative == self.made
        assert now.given == len(self.given)
