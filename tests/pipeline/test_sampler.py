"""A sampler under every order of events: nothing lost, nothing twice, whole groups, in time."""

import random
from itertools import chain
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorl_service.errors import EvaluatorError, InvalidRequest
from prorl_service.pipeline.informative import Outcome, outcome
from prorl_service.pipeline.sampler import Candidate, GroupState, Sampler
from prorl_service.sampler_schemas import Draw, DrawSpec, DrawState, DroppedGroup, SamplerSpec
from prorl_service.schemas import Group, Message, Rollout, RolloutState, Task

FAILURE = EvaluatorError("it failed").info()


def group(name: str, n: int = 4, task_id: str | None = None) -> Group:
    messages = [Message(role="user", content=".")]
    return Group(
        group_id=name, n=n, task=Task(task_id=task_id or name, agent="a", messages=messages)
    )


def rollout(index: int, score: float | None, version: int | None = 0) -> Rollout:
    return Rollout(
        rollout_id=f"g.{index}",
        group_id="g",
        task_id="t",
        agent="a",
        index=index,
        state=RolloutState.FAILED if score is None else RolloutState.DONE,
        reward=score,
        error=FAILURE if score is None else None,
        oldest_policy_version=version,
        created_at=0,
    )


class World:
    """Runs what a sampler begins, in an order of chance, and sees that all is in order."""

    def __init__(self, sampler: Sampler, chance: random.Random) -> None:
        self.sampler = sampler
        self.chance = chance
        self.version = 0
        self.is_told = chance.random() < 0.5
        """The service knows the version; else the trainer says it with each draw."""
        self.made = 0
        self.running: dict[tuple[str, int], dict[int, int]] = {}
        """Attempt: for each rollout that has not ended, the version with which it began."""
        self.scores: dict[tuple[str, int], dict[int, float | None]] = {}
        self.oldest: dict[tuple[str, int], int] = {}
        self.given: list[str] = []
        self.dropped: dict[str, list[DroppedGroup]] = {}
        """By draw."""
        self.n = 4

    def top_up(self) -> None:
        for _ in range(min(self.chance.randint(0, 6), self.sampler.status(0).wanted)):
            task = f"t{self.chance.randint(0, 9)}"
            self.sampler.add([group(f"g{self.made}", self.n, task)])
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
            if one.group_id in self.given:
                continue
            self.given.append(one.group_id)
            _, name, attempt = one.group_id.split(":")
            key = (name, int(attempt))
            scores = list(self.scores[key].values())
            assert len(scores) == self.n
            assert outcome(scores, self.n, self.sampler.spec.filter) is Outcome.INFORMATIVE
            assert self.oldest[key] >= self.version - self.sampler.spec.max_staleness
        before = self.dropped.setdefault(draw.draw_id, [])
        assert draw.dropped[: len(before)] == before
        self.dropped[draw.draw_id] = list(draw.dropped)

    def check_ends(self) -> None:
        """Each candidate that ended is in one draw, or waits for the next to be told."""
        draw = self.sampler.draw
        assert draw is not None
        assert draw.dropped == self.dropped[draw.draw_id], "it changed after its end"
        dropped = [*chain(*self.dropped.values()), *self.sampler.dropped]
        ended = [*(one.split(":")[1] for one in self.given), *(one.candidate for one in dropped)]
        assert len(set(ended)) == len(ended)
        now = self.sampler.status(0)
        assert len(ended) == now.given + now.uninformative + now.failed
        for one in dropped:
            attempt = max(attempt for name, attempt in self.scores if name == one.candidate)
            scores = list(self.scores[one.candidate, attempt].values())
            assert outcome(scores, self.n, self.sampler.spec.filter).value == one.reason
            known = [score for score in scores if score is not None]
            assert one.score_mean == (fmean(known) if known else None)
            assert one.error == (FAILURE if one.reason == "failed" else None)

    def check_counts(self) -> None:
        now = self.sampler.status(0)
        at_end = now.given + now.uninformative + now.failed
        assert at_end + now.waiting + now.under_way + now.informative == self.made
        assert now.given == len(self.given)


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 2**32).map(random.Random),
    st.builds(
        SamplerSpec,
        surplus=st.sampled_from(["carry", "cancel"]),
        max_staleness=st.integers(0, 2),
        groups_ahead=st.integers(0, 2),
        oversubscription=st.sampled_from([None, 1, 2.5]),
        defer_after=st.sampled_from([None, 1]),
        deferred_every=st.integers(1, 4),
    ),
)
def test_whatever_happens_in_whatever_order(chance: random.Random, spec: SamplerSpec) -> None:
    sampler = Sampler("s", spec, slots=chance.randint(1, 20))
    world = World(sampler, chance)
    for number in range(4):
        world.open_draw(f"d{number}")
        for _ in range(2000):
            world.step()
            world.check_draw()
            assert sampler.draw is not None
            if sampler.draw.state is not DrawState.OPEN:
                break
            chance.choice([world.top_up, world.end_one, world.end_one])()
        assert sampler.draw is not None
        assert sampler.draw.state is DrawState.COMPLETE
        assert len(sampler.draw.groups) == 2
        world.check_counts()
        for _ in range(chance.randint(0, 10)):  # the trainer's step
            world.end_one()
            world.step()
        world.check_ends()
        world.version += 1


def ended(sampler: Sampler, one: Candidate, *scores: float | None, version: int = 0) -> None:
    for index, score in enumerate(scores):
        sampler.rollout_ended(one.name, one.attempt, rollout(index, score, version))


def begun(sampler: Sampler) -> list[str]:
    return [one.name for one in sampler.begin()]


def test_a_slot_freed_is_refilled_at_once() -> None:
    sampler = Sampler("s", SamplerSpec(), slots=8)
    sampler.add(group(f"g{i}") for i in range(9))
    sampler.open_draw("d", DrawSpec(target=2), version=0)
    assert begun(sampler) == ["g0", "g1"]
    (first, _) = sampler.under_way()
    ended(sampler, first, 1.0)
    assert begun(sampler) == ["g2"]
    assert begun(sampler) == []


def test_surplus_goes_on_for_the_next_draw_and_is_counted() -> None:
    sampler = Sampler("s", SamplerSpec(), slots=12)
    sampler.add(group(f"g{i}") for i in range(3))
    sampler.open_draw("d0", DrawSpec(target=1), version=0)
    one, two, three = sampler.begin()
    ended(sampler, one, 0, 1, 0, 1)
    sampler.settle(0)
    ended(sampler, two, 0, 1, 0, 1)
    ended(sampler, three, 0, 1)
    sampler.open_draw("d1", DrawSpec(target=2), version=1)
    ended(sampler, three, 0, 1, 1, 1)
    sampler.settle(1)
    status = sampler.status(0)
    assert status.draw is not None
    assert [one.candidate for one in status.draw.groups] == ["g1", "g2"]
    assert status.carried == 2


def test_what_became_too_old_begins_anew_before_others() -> None:
    sampler = Sampler("s", SamplerSpec(max_staleness=1), slots=8)
    sampler.add(group(f"g{i}") for i in range(3))
    sampler.open_draw("d0", DrawSpec(target=1), version=0)
    one, two = sampler.begin()
    ended(sampler, one, 0, 1, 0, 1)
    sampler.settle(0)
    ended(sampler, two, 0, 1, 0, 1)
    sampler.open_draw("d1", DrawSpec(target=1), version=2)
    assert sampler.status(0).stale == 1
    assert [released.group_id for released in sampler.released] == ["s:g1:1"]
    (again, _) = sampler.begin()
    assert (again.name, again.attempt, again.scores) == ("g1", 2, {})


def test_the_trainer_may_know_of_newer_weights_than_the_service() -> None:
    sampler = Sampler("s", SamplerSpec(max_staleness=1, groups_ahead=2), slots=8)
    sampler.add(group(f"g{i}") for i in range(2))
    for one in sampler.begin():
        ended(sampler, one, 0, 1, 0, 1)
    sampler.open_draw("d0", DrawSpec(target=1, policy_version=1), version=0)
    sampler.open_draw("d1", DrawSpec(target=1, policy_version=2), version=0)
    status = sampler.status(0)
    assert (status.given, status.stale) == (1, 1)


def test_what_is_dropped_between_draws_is_told_by_the_next() -> None:
    sampler = Sampler("s", SamplerSpec(groups_ahead=9), slots=16)
    sampler.add(group(f"g{i}") for i in range(4))
    before, during, after, refused = sampler.begin()
    ended(sampler, before, 1, 1, 1, 1)
    sampler.open_draw("d0", DrawSpec(target=1, max_groups=1), version=0)
    begun_with = sampler.status(0).draw
    ended(sampler, during, None, 1, None, None)
    sampler.settle(0)
    ended(sampler, after, 0, 0, 1, 1, version=0)
    reason = InvalidRequest("no such agent").info()
    sampler.refused(refused.name, refused.attempt, reason)
    first = sampler.status(0).draw
    sampler.open_draw("d1", DrawSpec(target=1), version=0)
    second = sampler.status(0).draw
    assert begun_with is not None
    assert [one.candidate for one in begun_with.dropped] == ["g0"]
    assert first is not None
    assert first.dropped == [
        DroppedGroup(candidate="g0", reason="uninformative", score_mean=1),
        DroppedGroup(candidate="g1", reason="failed", score_mean=1, error=FAILURE),
    ]
    assert second is not None
    assert second.dropped == [
        DroppedGroup(candidate="g3", reason="failed", score_mean=None, error=reason)
    ]
    assert [one.candidate for one in second.groups] == ["g2"]


def test_a_draw_of_an_older_journal_is_read() -> None:
    written = b'{"draw_id": "d", "spec": {"target": 2}, "state": "open", "groups": []}'
    assert Draw.model_validate_json(written) == Draw(draw_id="d", spec=DrawSpec(target=2))


def test_cancelled_surplus_begins_anew() -> None:
    sampler = Sampler("s", SamplerSpec(surplus="cancel"), slots=8)
    sampler.add(group(f"g{i}") for i in range(2))
    sampler.open_draw("d0", DrawSpec(target=1), version=0)
    one, two = sampler.begin()
    ended(sampler, one, 0, 1, 0, 1)
    ended(sampler, two, None)
    sampler.settle(0)
    assert (two.state, two.last_error) == (GroupState.WAITING, None)
    assert [released.group_id for released in sampler.released] == ["s:g1:1"]
    ended(sampler, two, 1)  # of the attempt that was given up
    assert two.scores == {}


def test_tasks_that_teach_nothing_wait_behind_others_but_not_for_ever() -> None:
    spec = SamplerSpec(defer_after=1, deferred_every=3)
    sampler = Sampler("s", spec, slots=1)
    sampler.add([group("g", task_id="easy")])
    sampler.open_draw("d", DrawSpec(target=9), version=0)
    (one,) = sampler.begin()
    ended(sampler, one, 1, 1, 1, 1)
    sampler.add([group("again", task_id="easy")])
    sampler.add(group(f"new{i}") for i in range(4))
    assert sampler.status(0).deferred == 1
    order = []
    for _ in range(5):
        (one,) = sampler.begin()
        order.append(one.name)
        ended(sampler, one, 0, 1, 0, 1)
    assert order == ["new0", "again", "new1", "new2", "new3"]


def test_a_client_is_not_asked_without_end_when_all_tasks_are_deferred() -> None:
    sampler = Sampler("s", SamplerSpec(defer_after=1), slots=1)
    sampler.add([group("g", task_id="easy")])
    sampler.open_draw("d", DrawSpec(target=9), version=0)
    (one,) = sampler.begin()
    ended(sampler, one, 1, 1, 1, 1)
    for i in range(1000):
        if not sampler.status(0).wanted:
            break
        sampler.add([group(f"easy{i}", task_id="easy")])
    assert sampler.status(0).waiting < 100
    assert begun(sampler)


@pytest.mark.parametrize(("is_last", "max_groups"), [(True, None), (False, 1)])
def test_a_draw_ends_when_nothing_more_can_come(is_last: bool, max_groups: int | None) -> None:
    sampler = Sampler("s", SamplerSpec(), slots=8)
    sampler.add([group("g")], is_last=is_last)
    sampler.open_draw("d", DrawSpec(target=2, max_groups=max_groups), version=0)
    (one,) = sampler.begin()
    ended(sampler, one, 1, 1, 1, 1)
    sampler.settle(0)
    assert sampler.draw is not None
    assert sampler.draw.state is DrawState.EXHAUSTED


def test_a_draw_that_is_overdue_has_what_there_is() -> None:
    sampler = Sampler("s", SamplerSpec(), slots=8)
    sampler.add(group(f"g{i}") for i in range(2))
    sampler.open_draw("d", DrawSpec(target=2), version=0)
    one, _ = sampler.begin()
    ended(sampler, one, 0, 1, 1, 1)
    sampler.settle(0, is_overdue=True)
    assert sampler.draw is not None
    assert sampler.draw.state is DrawState.OVERDUE
    assert [given.candidate for given in sampler.draw.groups] == ["g0"]


def test_a_group_with_too_many_failures_is_stopped_early() -> None:
    sampler = Sampler("s", SamplerSpec(), slots=8)
    sampler.add([group("g")])
    sampler.open_draw("d", DrawSpec(target=1), version=0)
    (one,) = sampler.begin()
    ended(sampler, one, None, None, None)
    status = sampler.status(0)
    assert (status.failed, status.decided_early) == (1, 1)
    assert [released.group_id for released in sampler.released] == ["s:g:1"]
