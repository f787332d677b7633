"""The routing of calls: the rules by themselves, and counts that all return to zero."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from prorl_service.inference.routing import (
    FIRST_CALLS,
    PROVEN_CALLS,
    EngineLoad,
    LeastExpectedTime,
    RouteRequest,
)

NAMES = ("a", "b", "c")


def loads(*, max_calls: int = 64, proven: bool = True) -> dict[str, EngineLoad]:
    made = {name: EngineLoad(max_calls) for name in NAMES}
    for load in made.values():
        if proven:
            for _ in range(PROVEN_CALLS):
                load.learn(sampled=100, uncached=0, took_s=1.0)
    return made


def call(session: str, pinned: str | None = None, prompt_tokens: int = 1000) -> RouteRequest:
    return RouteRequest(session, pinned, prompt_tokens, 256)


def assign(router: LeastExpectedTime, all_loads: dict[str, EngineLoad], one: RouteRequest) -> str:
    chosen = router.choose(one, all_loads)
    assert chosen is not None
    all_loads[chosen].begin(one.work_at(chosen))
    all_loads[chosen].sessions += 1
    return chosen


def test_a_session_stays_on_its_engine_however_busy() -> None:
    there = loads()
    for _ in range(40):
        there["a"].begin(500.0)
    assert LeastExpectedTime().choose(call("s", pinned="a"), there) == "a"


def test_siblings_are_spread() -> None:
    there, router = loads(), LeastExpectedTime()
    chosen = Counter(assign(router, there, call(f"g.{i}")) for i in range(30))
    assert set(chosen.values()) == {10}


def test_long_prompts_count_for_more() -> None:
    there, router = loads(), LeastExpectedTime()
    first = assign(router, there, call("long", prompt_tokens=60_000))
    others = [assign(router, there, call(f"s{i}")) for i in range(6)]
    assert first not in others


def test_a_slow_engine_gets_nothing_new_while_others_are_hardly_busy() -> None:
    there, router = loads(), LeastExpectedTime()
    for _ in range(PROVEN_CALLS):
        there["a"].learn(sampled=100, uncached=0, took_s=10.0)
    assert "a" not in {assign(router, there, call(f"s{i}")) for i in range(20)}
    assert router.choose(call("mine", pinned="a"), there) in ("b", "c")
    assert router.moves == 1


def test_a_slow_engine_is_eventually_tried_again() -> None:
    there, router = loads(), LeastExpectedTime()
    for _ in range(PROVEN_CALLS):
        there["a"].learn(sampled=100, uncached=0, took_s=10.0)
    assert "a" in {router.choose(call(f"s{i}"), there) for i in range(2000)}


def test_a_newcomer_is_not_buried() -> None:
    there, router = loads(), LeastExpectedTime()
    there["new"] = EngineLoad(64)
    chosen = Counter(assign(router, there, call(f"s{i}")) for i in range(40))
    assert chosen["new"] == FIRST_CALLS


def test_engines_that_all_begin_together_are_not_held_back() -> None:
    there, router = loads(proven=False), LeastExpectedTime()
    assert set(Counter(assign(router, there, call(f"s{i}")) for i in range(60)).values()) == {20}


def test_calls_wait_when_all_engines_are_full() -> None:
    there, router = loads(max_calls=2), LeastExpectedTime()
    for i in range(6):
        assign(router, there, call(f"s{i}"))
    assert router.choose(call("late"), there) is None
    assert router.choose(call("s0", pinned="a"), there) is None
    there["b"].end(call("x").work_at("b"))
    assert router.choose(call("late"), there) == "b"
    assert LeastExpectedTime().choose(call("s"), {}) is None


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.integers(1, 5000)), max_size=60))
def test_counts_return_to_zero_and_choices_repeat(
    history: list[tuple[int, bool, int]],
) -> None:
    there, again = loads(), loads()
    router, twin = LeastExpectedTime(), LeastExpectedTime()
    open_calls: dict[int, tuple[str, RouteRequest]] = {}
    for number, succeeds, prompt in history:
        if number in open_calls:
            name, one = open_calls.pop(number)
            for each in (there, again):
                each[name].end(one.work_at(name))
                if succeeds:
                    each[name].learn(sampled=prompt % 97 + 1, uncached=prompt, took_s=prompt / 999)
        else:
            one = call(f"s{number}", prompt_tokens=prompt)
            chosen = router.choose(one, there)
            assert chosen == twin.choose(one, again)
            assert chosen is not None
            there[chosen].begin(one.work_at(chosen))
            again[chosen].begin(one.work_at(chosen))
            open_calls[number] = chosen, one
    for name, one in open_calls.values():
        there[name].end(one.work_at(name))
    assert all(load.calls == 0 and abs(load.work) < 1e-6 for load in there.values())
