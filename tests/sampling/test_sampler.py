"""A sampler under any order of events: no group is lost, repeated, partial or too old."""

import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorl_service.sampling.candidates import Candidate
from prorl_service.sampling.filter import GroupState
from prorl_service.sampling.sampler import Sampler
from prorl_service.schemas import Group, Rollout
from prorl_service.schemas.sampling import (
    Curriculum,
    Draw,
    DrawSpec,
    DrawState,
    SamplerSpec,
)
from tests.sampling.sampler_world import World, group, rollout


@pytest.mark.slow
@settings(max_examples=100)
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
        curriculum=st.sampled_from([None, Curriculum(window=2)]),
        head_start=st.booleans(),
    ),
)
def test_invariants_hold_under_any_order_of_events(
    chance: random.Random, spec: SamplerSpec
) -> None:
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
            if chance.random() < 0.02:  # asynchronous training
                world.version += 1
        assert sampler.draw is not None
        assert sampler.draw.state is DrawState.COMPLETE
        assert len(sampler.draw.groups) == 2
        world.check_counts()
        for _ in range(chance.randint(0, 10)):  # the trainer's step
            world.end_one()
            world.step()
        world.check_ends()
        world.version += 1


def opened(
    groups: Iterable[Group], slots: int, target: int, version: int = 0, **spec: Any
) -> Sampler:
    """Returns a sampler of these groups with an open draw `d`."""
    sampler = Sampler("s", SamplerSpec(**spec), slots=slots)
    sampler.add(groups)
    sampler.open_draw("d", DrawSpec(target=target), version=version)
    return sampler


def ended(sampler: Sampler, one: Candidate, *scores: float | None, version: int = 0) -> None:
    for index, score in enumerate(scores):
        sampler.rollout_ended(one.name, one.attempt, rollout(index, score, version))


def drawn(sampler: Sampler) -> tuple[DrawState, list[str]]:
    assert sampler.draw is not None
    return sampler.draw.state, [one.group_id for one in sampler.draw.groups]


def begun(sampler: Sampler) -> list[str]:
    return [one.name for one in sampler.begin()]


def test_a_freed_slot_is_refilled_immediately() -> None:
    sampler = opened((group(f"g{i}") for i in range(9)), slots=8, target=2)
    assert begun(sampler) == ["g0", "g1"]
    (first, _) = sampler.under_way()
    ended(sampler, first, 1.0)
    assert begun(sampler) == ["g2"]
    assert begun(sampler) == []


def test_surplus_is_carried_over_to_the_next_draw_and_counted() -> None:
    sampler = opened((group(f"g{i}") for i in range(3)), slots=12, target=1)
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


def test_groups_that_became_too_old_start_again_before_others() -> None:
    sampler = opened((group(f"g{i}") for i in range(3)), slots=8, target=1, max_staleness=1)
    one, two = sampler.begin()
    ended(sampler, one, 0, 1, 0, 1)
    sampler.settle(0)
    ended(sampler, two, 0, 1, 0, 1)
    sampler.open_draw("d1", DrawSpec(target=1), version=2)
    assert sampler.status(0).stale == 1
    assert [released.group_id for released in sampler.released] == ["s:g1:1"]
    (again, _) = sampler.begin()
    assert (again.name, again.attempt, len(again.scores)) == ("g1", 2, 0)


def test_a_complete_draw_has_no_group_that_became_too_old_meanwhile() -> None:
    sampler = opened(
        (group(f"g{i}") for i in range(2)), slots=8, target=2, version=5, max_staleness=1
    )
    one, two = sampler.begin()
    ended(sampler, one, 0, 1, 0, 1, version=5)
    sampler.settle(5)
    assert drawn(sampler) == (DrawState.OPEN, ["s:g0:1"])
    ended(sampler, two, 0, 1, 0, 1, version=8)
    sampler.settle(8)
    assert drawn(sampler) == (DrawState.OPEN, ["s:g1:1"])
    assert [released.group_id for released in sampler.released] == ["s:g0:1"]
    (again,) = sampler.begin()
    ended(sampler, again, 0, 1, 0, 1, version=8)
    sampler.settle(8)
    assert drawn(sampler) == (DrawState.COMPLETE, ["s:g1:1", "s:g0:2"])
    sampler.settle(99)
    assert drawn(sampler) == (DrawState.COMPLETE, ["s:g1:1", "s:g0:2"])
    status = sampler.status(0)
    assert (status.given, status.stale, status.informative) == (2, 1, 0)


def test_groups_of_an_open_draw_are_checked_after_a_restart() -> None:
    before = Sampler("s", SamplerSpec(max_staleness=1), slots=8)
    before.add([group("g0")])
    before.open_draw("d", DrawSpec(target=2), version=5)
    (one,) = before.begin()
    ended(before, one, 0, 1, 0, 1, version=5)
    before.settle(5)
    after = Sampler("s", before.spec, slots=8)
    after.draw = before.draw
    after.restore(before.changed["g0"])
    after.settle(8)
    assert drawn(after) == (DrawState.OPEN, [])
    assert begun(after) == ["g0"]


def test_the_trainer_may_know_of_newer_weights_than_the_service() -> None:
    sampler = Sampler("s", SamplerSpec(max_staleness=1, groups_ahead=2), slots=8)
    sampler.add(group(f"g{i}") for i in range(2))
    for one in sampler.begin():
        ended(sampler, one, 0, 1, 0, 1)
    sampler.open_draw("d0", DrawSpec(target=1, policy_version=1), version=0)
    sampler.open_draw("d1", DrawSpec(target=1, policy_version=2), version=0)
    status = sampler.status(0)
    assert (status.given, status.stale) == (1, 1)


def test_a_draw_of_an_older_journal_is_read() -> None:
    written = b'{"draw_id": "d", "spec": {"target": 2}, "state": "open", "groups": []}'
    assert Draw.model_validate_json(written) == Draw(draw_id="d", spec=DrawSpec(target=2))


def test_cancelled_surplus_starts_from_scratch() -> None:
    sampler = opened((group(f"g{i}") for i in range(2)), slots=8, target=1, surplus="cancel")
    one, two = sampler.begin()
    ended(sampler, one, 0, 1, 0, 1)
    ended(sampler, two, None)
    sampler.settle(0)
    assert (two.state, two.last_error) == (GroupState.WAITING, None)
    assert [released.group_id for released in sampler.released] == ["s:g1:1"]
    ended(sampler, two, 1)  # of the abandoned attempt
    assert len(two.scores) == 0


def test_tasks_that_teach_nothing_wait_behind_others_but_not_forever() -> None:
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


def test_a_client_is_not_asked_endlessly_when_all_tasks_are_deferred() -> None:
    sampler = opened([group("g", task_id="easy")], slots=1, target=9, defer_after=1)
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
    assert drawn(sampler) == (DrawState.EXHAUSTED, [])


def test_a_group_with_too_many_failures_is_stopped_early() -> None:
    sampler = opened([group("g")], slots=8, target=1)
    (one,) = sampler.begin()
    ended(sampler, one, None, None, None)
    status = sampler.status(0)
    assert (status.failed, status.decided_early) == (1, 1)
    assert [released.group_id for released in sampler.released] == ["s:g:1"]


def ended_with(index: int, score: float, *versions: int) -> Rollout:
    update = {"oldest_policy_version": min(versions), "newest_policy_version": max(versions)}
    return rollout(index, score).model_copy(update=update)


def test_tokens_newer_than_the_last_pushed_weights_are_sampled_again() -> None:
    sampler = Sampler("s", SamplerSpec(groups_at_once=3), slots=12)
    sampler.add([group(name, n=2) for name in ("ended", "ends", "fine")])
    sampler.open_draw("d", DrawSpec(target=3), version=57, pushed=57)
    assert len(list(sampler.begin())) == 3
    for index in range(2):
        sampler.rollout_ended("ended", 1, ended_with(index, index, 57))
    sampler.settle(1, 1)  # the trainer went back
    assert [one.group_id for one in sampler.released] == ["s:ended:1"]
    for index in range(2):
        sampler.rollout_ended("ends", 1, ended_with(index, index, 1, 57))
        sampler.rollout_ended("fine", 1, ended_with(index, index, 1))
    sampler.settle(1, 1)
    assert drawn(sampler) == (DrawState.OPEN, ["s:fine:1"])
    assert sampler.status(0).stale == 2


def test_engines_updated_by_others_may_be_ahead_of_the_service() -> None:
    sampler = opened([group("g", n=2)], slots=12, target=1, version=4)
    assert len(list(sampler.begin())) == 1
    for index in range(2):
        sampler.rollout_ended("g", 1, ended_with(index, index, 5))
    sampler.settle(4)
    assert drawn(sampler) == (DrawState.COMPLETE, ["s:g:1"])
