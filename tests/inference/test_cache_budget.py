"""Admission by the KV cache, as a pure controller, and with a simulated engine."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.inference.cache_budget import (
    LEAST_SHARE,
    REMEMBERED,
    CacheBudget,
    CachePlace,
    EngineCache,
)
from prorl_service.schemas import CacheStatus, EngineGauges

PROMPT = 10


def cache_of(tokens: int | None) -> EngineCache:
    return EngineCache(EngineGauges(kv_tokens=tokens))


def budget_of(*tokens: int | None) -> CacheBudget:
    budget = CacheBudget()
    budget.set_engines([cache_of(one) for one in tokens])
    return budget


def place(group: str = "g", most: int = 100, prompt: int = PROMPT, tokens: int = 0) -> CachePlace:
    return CachePlace("agent", group, prompt, most, tokens)


def line(budget: CacheBudget, places: Sequence[CachePlace]) -> list[bool]:
    for one in places:
        budget.join(one)
    return [one.admitted.is_set() for one in places]


def test_as_many_begin_as_are_expected_to_fit() -> None:
    budget = budget_of(200)
    assert line(budget, [place(str(one)) for one in range(4)]) == [True, True, True, False]
    assert budget.status() == CacheStatus(
        budget_tokens=200, expected_tokens=180, admitted=3, held=0, waiting=1
    )


def test_a_prompt_that_a_group_shares_counts_once_at_each_engine() -> None:
    assert line(budget_of(180), [place(prompt=80) for _ in range(4)]) == [True, True, False, False]
    two = budget_of(140, 140)
    assert line(two, [place(prompt=80) for _ in range(4)]) == [True, True, False, False]


def test_the_next_is_expected_to_need_what_others_of_its_agent_needed() -> None:
    budget = budget_of(1000)
    for _ in range(REMEMBERED * 2):
        ended = place(most=1000)
        budget.join(ended)
        budget.grow(ended, PROMPT + 20)
        budget.leave(ended)
    others = CachePlace("another", "g", PROMPT, 1000)
    assert line(budget, [place(str(one), 1000) for one in range(40)]).count(True) == 27
    assert line(budget, [others]) == [False]


def test_one_that_never_sampled_teaches_nothing() -> None:
    budget = budget_of(200)
    unused = place()
    budget.join(unused)
    budget.leave(unused)
    assert line(budget, [place(str(one)) for one in range(4)]).count(True) == 3


def test_growth_beyond_what_was_expected_holds_the_youngest_alone() -> None:
    budget = budget_of(200)
    places = [place(str(one)) for one in range(3)]
    assert line(budget, places) == [True, True, True]
    budget.grow(places[0], PROMPT + 90)
    assert [one.admitted.is_set() for one in places] == [True, True, False]
    status = budget.status()
    assert status is not None
    assert (status.held, status.waiting) == (1, 0)
    budget.leave(places[1])
    assert places[2].admitted.is_set()


@pytest.mark.parametrize("tokens", [(), (None,), (100, None)])
def test_without_gauges_of_all_engines_everyone_is_admitted(tokens: tuple[int | None, ...]) -> None:
    budget = budget_of(*tokens)
    assert all(line(budget, [place(str(one), 5000) for one in range(50)]))
    assert budget.status() is None


def test_whoever_waits_finds_out_that_the_rollout_was_cancelled() -> None:
    budget = budget_of(10)
    places = [place(str(one)) for one in range(3)]
    assert line(budget, places) == [True, False, False]
    budget.leave(places[1])
    budget.leave(places[1])
    assert [one.admitted.is_set() for one in places] == [True, True, False]


def test_preemptions_and_waiting_calls_trim_an_engines_share() -> None:
    cache = EngineCache()
    cache.observe(EngineGauges(kv_tokens=1000, preemptions=7))
    assert cache.budget_tokens == 1000  # those before it was known are not ours
    cache.observe(EngineGauges(kv_tokens=1000, preemptions=8))
    assert cache.budget_tokens == 900
    cache.observe(EngineGauges(kv_tokens=1000, preemptions=8, waiting=3, kv_use=0.5))
    assert cache.budget_tokens == 910  # they wait for something else
    for _ in range(50):
        cache.observe(EngineGauges(kv_tokens=1000, preemptions=8, waiting=3, kv_use=0.95))
    assert cache.budget_tokens == LEAST_SHARE * 1000
    for _ in range(100):
        cache.observe(EngineGauges(kv_tokens=1000))  # started again
    assert cache.budget_tokens == 1000
    cache.observe(None)
    assert cache.budget_tokens is None


LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=30)


@given(LENGTHS, st.integers(1, 500), st.randoms(use_true_random=False))
def test_it_starves_none_keeps_the_order_and_the_budget(
    lengths: list[int], tokens: int, random: Random
) -> None:
    """Lengths are known: a rollout is expected to need what it has already."""
    budget = budget_of(tokens)
    places = [place(str(number), 0, 1, length) for number, length in enumerate(lengths)]
    left, begun = list(places), list[CachePlace]()
    for one in places:
        budget.join(one)
    while left:
        admitted = [one for one in left if one.admitted.is_set()]
        assert admitted == left[: len(admitted)], "the order is fair"
        assert admitted, "at least one runs"
        needed = sum(one.tokens + 1 for one in admitted)
        assert needed <= tokens or len(admitted) == 1
        begun += [one for one in admitted if one not in begun]
        done = random.choice(admitted)
        budget.leave(done)
        left.remove(done)
    assert begun == places


def simulated(kv_tokens: int, sessions: int, *, is_budgeted: bool) -> tuple[int, int]:
    """Returns how often an engine preempts, and how many tokens it computes, until all sessions
    have ended. In a step each session that may sample adds 8 tokens; those that do not fit are
    preempted, the youngest first, and computed again in the next step."""
    budget, cache = CacheBudget(), EngineCache(EngineGauges(kv_tokens=kv_tokens))
    budget.set_engines([cache] if is_budgeted else [])
    running = [place(str(number), most=200) for number in range(sessions)]
    random, ends, lost = Random(0), dict[CachePlace, int](), set[CachePlace]()
    for one in running:
        ends[one] = random.randrange(60, 120)
        budget.join(one)
    preemptions = computed = 0
    while running:
        sampling = [one for one in running if one.admitted.is_set()]
        assert sampling
        while len(sampling) > 1 and sum(PROMPT + one.tokens + 8 for one in sampling) > kv_tokens:
            lost.add(sampling.pop())
            preemptions += 1
        for one in sampling:
            computed += 8 + (PROMPT + one.tokens) * (one in lost)
            lost.discard(one)
            budget.grow(one, PROMPT + one.tokens + 8)
            if one.tokens >= ends[one]:
                budget.leave(one)
                running.remove(one)
        cache.observe(EngineGauges(kv_tokens=kv_tokens, preemptions=preemptions))
        budget.set_engines([cache] if is_budgeted else [])
    return preemptions, computed


def test_a_simulated_engine_preempts_less_and_computes_less() -> None:
    fixed, all_computed = simulated(600, 40, is_budgeted=False)
    budgeted, computed = simulated(600, 40, is_budgeted=True)
    assert budgeted * 20 < fixed
    assert computed < all_computed
