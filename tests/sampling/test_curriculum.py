"""The curriculum: which difficulties are passed over, how often, and what draws report of them."""

import random

from hypothesis import given
from hypothesis import strategies as st

from prorl_service.sampling.curriculum import CurriculumState, LevelChooser
from prorl_service.sampling.filter import GroupState
from prorl_service.sampling.sampler import Sampler
from prorl_service.schemas import Difficulty, Group
from prorl_service.schemas.sampling import Curriculum, DrawSpec, SamplerSpec, summed
from tests.sampling.sampler_world import group, rollout

EASY, MEDIUM, HARD = (Difficulty(kind="sums", level=level) for level in range(3))
GOOD, BAD = GroupState.INFORMATIVE, GroupState.UNINFORMATIVE


def chooser(**options: int) -> LevelChooser:
    made = LevelChooser(Curriculum(**options))
    for one, outcomes in {EASY: [BAD] * 16, MEDIUM: [GOOD, BAD] * 8, HARD: [BAD] * 3}.items():
        for state in outcomes:
            made.remember(one, state)
    return made


def begun(one: LevelChooser, count: int = 2000) -> dict[int, float]:
    """Returns the share of candidates that are begun, by level."""
    return {
        difficulty.level: sum(not one.passes_over(difficulty) for _ in range(count)) / count
        for difficulty in (EASY, MEDIUM, HARD)
    }


def test_a_difficulty_is_begun_as_often_as_it_was_informative_relative_to_the_best() -> None:
    one = chooser()
    assert [one.share(level) for level in (EASY, MEDIUM, HARD)] == [1 / 17, 9 / 17, 1 / 4]
    shares = begun(one)
    assert shares[1] == 1.0
    assert abs(shares[0] - 1 / 9) < 0.03
    assert abs(shares[2] - 17 / 36) < 0.04


def test_a_difficulty_that_was_never_tried_is_always_begun() -> None:
    one = chooser()
    new = Difficulty(kind="sums", level=9)
    assert not any(one.passes_over(new) for _ in range(100))
    assert begun(one)[1] < 1.0  # it has become the best


def test_old_groups_are_forgotten() -> None:
    one = chooser(window=4)
    for _ in range(4):
        one.remember(EASY, GOOD)
    assert one.share(EASY) == 1.0


def test_failed_groups_say_nothing() -> None:
    one = chooser()
    one.remember(MEDIUM, GroupState.FAILED)
    assert one.share(MEDIUM) == 9 / 17


def test_without_a_curriculum_or_a_difficulty_nothing_is_passed_over() -> None:
    without = LevelChooser(None)
    without.remember(EASY, BAD)
    assert not any(without.passes_over(EASY) for _ in range(100))
    assert not any(chooser().passes_over(None) for _ in range(100))
    assert without.state() is None


def choices(one: LevelChooser, count: int = 50) -> list[bool]:
    return [one.passes_over(EASY) for _ in range(count)]


def test_choices_depend_on_the_seed_alone_and_continue_after_a_restart() -> None:
    assert choices(chooser(seed=1)) == choices(chooser(seed=1)) != choices(chooser(seed=2))
    one, other = chooser(seed=1), LevelChooser(Curriculum(seed=1))
    choices(one)
    state = one.state()
    assert state is not None
    other.restore(CurriculumState.model_validate_json(state.model_dump_json()))
    assert choices(one) == choices(other)
    assert one.state() == other.state()


def posed(name: str, difficulty: Difficulty | None) -> Group:
    made = group(name)
    return made.model_copy(update={"task": made.task.model_copy(update={"difficulty": difficulty})})


def test_a_draw_reports_what_ended_by_difficulty_and_what_was_passed_over() -> None:
    sampler = Sampler("s", SamplerSpec(curriculum=Curriculum()), slots=4)
    sampler.levels = chooser()
    levels = [EASY, MEDIUM, HARD, None]
    sampler.add([posed(f"g{number}", levels[number % 4]) for number in range(80)], is_last=True)
    sampler.open_draw("d", DrawSpec(target=80), version=0)
    solved = {EASY: [1, 1, 1, 1], MEDIUM: [0, 1, 0, 1], HARD: [0, 0, 0, 0], None: [0, 0, 0, 1]}
    tried = dict.fromkeys(solved, 0)
    while candidates := list(sampler.begin()):
        for one in candidates:
            difficulty = one.group.task.difficulty
            tried[difficulty] += 1
            for index, score in enumerate(solved[difficulty]):
                sampler.rollout_ended(one.name, one.attempt, rollout(index, score))
        sampler.settle(0)
    draw = sampler.draw
    assert draw is not None
    counts = {one.difficulty: one for one in draw.difficulties}
    assert set(counts) == {EASY, MEDIUM, HARD}
    assert (tried[MEDIUM], tried[None]) == (20, 20)
    for difficulty, count in counts.items():
        assert count.informative + count.uninformative == tried[difficulty]
        assert count.passed_over == 20 - tried[difficulty]
        assert count.scored == 4 * tried[difficulty]
    assert (counts[MEDIUM].informative_share, counts[MEDIUM].score_mean) == (1.0, 0.5)
    assert (counts[HARD].informative_share, counts[HARD].score_mean) == (0.0, 0.0)
    assert counts[EASY].passed_over > counts[HARD].passed_over > 0
    passed = [gone.candidate for gone in draw.dropped if gone.reason == "passed_over"]
    assert len(passed) == len(set(passed)) == sampler.status(0).passed_over
    assert len(passed) == sum(count.passed_over for count in counts.values())


def test_counts_between_draws_are_the_next_draws() -> None:
    sampler = Sampler("s", SamplerSpec(), slots=8)
    sampler.add([posed("a", EASY), posed("b", HARD)])
    sampler.open_draw("d", DrawSpec(target=1), version=0)
    a, b = sampler.begin()
    for index in range(4):
        sampler.rollout_ended(a.name, a.attempt, rollout(index, float(index == 0)))
    sampler.settle(0)
    assert sampler.draw is not None
    assert [one.difficulty for one in sampler.draw.difficulties] == [EASY]
    for index in range(4):
        sampler.rollout_ended(b.name, b.attempt, rollout(index, None))
    assert [one.failed for one in sampler.difficulties] == [1]
    sampler.open_draw("e", DrawSpec(target=1), version=0)
    assert [one.difficulty for one in sampler.draw.difficulties] == [HARD]
    assert sampler.difficulties == []


@given(st.randoms(use_true_random=False))
def test_sums_of_counts_do_not_depend_on_their_order(chance: random.Random) -> None:
    sampler = Sampler("s", SamplerSpec(), slots=400)
    sampler.add([posed(f"g{number}", chance.choice([EASY, HARD])) for number in range(20)])
    sampler.open_draw("d", DrawSpec(target=20), version=0)
    for one in sampler.begin():
        for index in range(4):
            sampler.rollout_ended(
                one.name, one.attempt, rollout(index, chance.choice([0, 1, None]))
            )
    assert sampler.draw is not None
    singles = sampler.draw.difficulties
    shuffled = chance.sample([*singles, *singles], 2 * len(singles))
    for total in summed(shuffled):
        [before] = [single for single in singles if single.difficulty == total.difficulty]
        assert total.scored == 2 * before.scored
        assert total.informative == 2 * before.informative
        if before.score_mean is not None:
            assert abs((total.score_mean or 0) - before.score_mean) < 1e-9
