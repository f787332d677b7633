"""Groups that have all failed begin once more, with turns of their solutions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.sampling.candidates import Candidate
from prorl_service.sampling.sampler import Sampler
from prorl_service.schemas import Group, Start
from tests.sampling.sampler_world import group, rollout
from tests.sampling.test_sampler import ended, opened


def with_solution(name: str) -> Group:
    made = group(name)
    return made.model_copy(update={"task": made.task.model_copy(update={"solution": ["a", "b"]})})


def begun_again(sampler: Sampler, one: Candidate) -> Start | None:
    """Has the whole group fail. Returns what it begins again with; None if that was its end."""
    attempt = one.attempt
    ended(sampler, one, 0, 0, 0, 0)
    again = [found for found in sampler.begin() if found.name == one.name]
    assert [found.attempt for found in again] in ([], [attempt + 1])
    return sampler.group_of(again[0]).start if again else None


def test_a_group_that_failed_begins_once_more() -> None:
    sampler = opened([with_solution("a")], slots=8, target=1, head_start=True)
    [one] = sampler.begin()
    assert sampler.group_of(one).start is None
    assert begun_again(sampler, one) == Start(share=1.0)
    assert begun_again(sampler, one) is None
    status = sampler.status(0)
    assert (status.head_started, status.uninformative, status.scored) == (1, 1, 8)
    assert status.draw is not None
    assert status.draw.finished == 2


@pytest.mark.parametrize(
    ("candidate", "scores", "is_on"),
    [
        (with_solution("a"), (1, 1, 1, 1), True),
        (with_solution("a"), (None, None, None, None), True),
        (with_solution("a"), (0, 0, 0, 0), False),
        (group("a"), (0, 0, 0, 0), True),
        (with_solution("a").model_copy(update={"start": Start(share=0.5)}), (0, 0, 0, 0), True),
    ],
    ids=["all solved it", "it could not run", "by default", "without a solution", "with its own"],
)
def test_others_do_not(candidate: Group, scores: tuple[float | None, ...], is_on: bool) -> None:
    sampler = opened([candidate], slots=8, target=1, head_start=is_on)
    [one] = sampler.begin()
    ended(sampler, one, *scores)
    assert [*sampler.begin()] == []
    assert sampler.status(0).head_started == 0


@pytest.mark.parametrize(
    ("scores", "best"),
    [((0, 1, 1, 0), 1), ((0.5, 1, 0.5, 1), 1), ((0.5, 0, 0, 0), 0), ((0, 0, 0, 0), None)],
    ids=["a success", "the best", "a partial success", "none"],
)
def test_without_a_solution_it_begins_as_the_best_of_an_earlier_group(
    scores: tuple[float, ...], best: int | None
) -> None:
    candidates = [group("a", task_id="t"), group("b", task_id="t")]
    sampler = opened(candidates, slots=4, target=2, head_start=True)
    [one] = sampler.begin()
    ended(sampler, one, *scores)
    wanted = None
    if best is not None:
        success = sampler.head_starts.unread[-1]
        assert success.rollout_id == rollout(best, 0).rollout_id
        success.replies = ["a", "b"]
        wanted = Start(share=1.0, replies=["a", "b"])
    other = next(found for found in sampler.begin() if found.name == "b")
    assert begun_again(sampler, other) == wanted


def test_a_success_that_was_not_read_or_has_one_turn_is_no_head_start() -> None:
    for replies in ([], ["a"]):
        candidates = [group("a", task_id="t"), group("b", task_id="t")]
        sampler = opened(candidates, slots=4, target=2, head_start=True)
        [one] = sampler.begin()
        ended(sampler, one, 0, 1, 0, 1)
        sampler.head_starts.unread[0].replies = replies
        other = next(found for found in sampler.begin() if found.name == "b")
        assert begun_again(sampler, other) is None


@pytest.mark.parametrize(
    ("scores", "change"),
    [((1, 1, 1, 1), -0.05), ((0, 1, 0, 1), -0.01), ((0, 0, 0, 0), 0.05), ((None,) * 4, 0.0)],
    ids=["no help was needed", "it teaches", "it failed again", "it could not run"],
)
def test_the_share_follows_how_groups_with_a_head_start_end(
    scores: tuple[float | None, ...], change: float
) -> None:
    names = [f"g{number}" for number in range(10)]
    sampler = opened(map(with_solution, names), slots=4, target=60, head_start=True)
    sampler.head_starts.share = 0.5
    [one] = sampler.begin()
    ended(sampler, one, 0, 0, 0, 0)
    [again] = sampler.begin()
    assert again is one
    ended(sampler, one, *scores)
    assert sampler.head_starts.share == pytest.approx(0.5 + change)


@given(st.lists(st.sampled_from([(1, 1, 1, 1), (0, 1, 0, 1), (0, 0, 0, 0)]), max_size=60))
def test_the_share_stays_within_its_bounds(ends: list[tuple[int, ...]]) -> None:
    names = [f"g{number}" for number in range(len(ends) + 1)]
    sampler = opened(map(with_solution, names), slots=4, target=100, head_start=True)
    for scores in ends:
        [one] = sampler.begin()
        ended(sampler, one, 0, 0, 0, 0)
        [again] = sampler.begin()
        start = sampler.group_of(again).start
        assert start is not None
        assert start.share is not None
        assert 0 < start.share <= 1
        ended(sampler, again, *scores)
