"""Places of keys among fronts, and shares of draws, without any front."""

from collections import Counter
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from prorl_service.client import cells
from prorl_service.client.cells import (
    Places,
    allot,
    draw_shares,
    engine_key,
    fronts_in,
    group_id_of,
    ranking,
    sampler_share,
    shares,
)
from prorl_service.errors import ProRLError
from prorl_service.schemas.sampling import DrawSpec, SamplerSpec
from tests.server.scored_agent import scored

KEYS = [f"run-{number}" for number in range(2000)]

fronts = st.lists(
    st.integers(1, 999).map(lambda number: f"http://10.0.0.1:{number}"),
    min_size=2,
    max_size=8,
    unique=True,
)
keys = st.text("abc012-", min_size=1, max_size=20)


@given(fronts, keys, st.randoms())
def test_a_ranking_has_all_fronts_whatever_order_they_are_named_in(
    named: list[str], key: str, random: Random
) -> None:
    shuffled = random.sample(named, len(named))
    assert sorted(ranking(named, key)) == sorted(named)
    assert ranking(shuffled, key) == ranking(named, key)


@given(fronts, st.data())
def test_without_a_front_only_its_own_keys_move_each_to_the_next_of_its_ranking(
    named: list[str], data: st.DataObject
) -> None:
    lost = data.draw(st.sampled_from(named))
    left = [one for one in named if one != lost]
    for key in KEYS[:100]:
        before, after = ranking(named, key), ranking(left, key)
        assert after == [one for one in before if one != lost]


@given(fronts)
def test_keys_are_spread_evenly(named: list[str]) -> None:
    counts = Counter(ranking(named, key)[0] for key in KEYS)
    fair = len(KEYS) / len(named)
    assert all(abs(counts[one] - fair) < 6 * fair**0.5 for one in named)


@given(fronts, keys)
def test_new_groups_avoid_fronts_that_refused_them(named: list[str], key: str) -> None:
    places, order = Places(named), ranking(named, key)
    assert places.choose(key) == order[0]
    assert places.choose(key, order[:1]) == order[1]
    assert places.choose(key, named) is None
    places.avoid(order[0])
    assert places.choose(key) == order[1]
    for one in named:
        places.avoid(one)
    assert places.choose(key) == order[0]


def test_a_front_is_avoided_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    places = Places(["http://a", "http://b"])
    first = places.choose("g")
    assert first is not None
    monkeypatch.setattr(cells, "AVOID_S", 0.0)
    places.avoid(first)
    assert places.choose("g") == first


def test_all_clients_of_the_same_fronts_share_what_they_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    places = cells.places_of(["http://a", "http://b"])
    assert cells.places_of(["http://b", "http://a"]) is places
    assert cells.places_of(["http://a", "http://c"]) is not places
    monkeypatch.setattr(cells, "MAX_REMEMBERED", 2)
    places.remember(["g1", "g2"], "http://a")
    places.remember(["g3"], "http://b")
    assert places.divide(["g1", "g2", "g3"]) == ({"http://a": ["g2"], "http://b": ["g3"]}, ["g1"])
    places.forget(["g2", "g3", "unknown"])
    assert places.divide(["g2", "g3"]) == ({}, ["g2", "g3"])


@given(st.integers(0, 1000), fronts)
def test_shares_are_equal_and_add_up(total: int, named: list[str]) -> None:
    parts = shares(total, named)
    assert sum(parts.values()) == total
    counts = [parts[one] for one in named]
    assert counts == sorted(counts, reverse=True)
    assert max(counts) - min(counts) <= 1


@given(fronts, keys, st.integers(1, 100), st.none() | st.integers(1, 100))
def test_the_shares_of_a_draw_are_valid_and_add_up(
    named: list[str], draw_id: str, target: int, max_groups: int | None
) -> None:
    spec = DrawSpec(target=target, max_groups=max_groups, deadline_s=9, policy_version=3)
    parts = draw_shares(named, draw_id, spec)
    assert parts == draw_shares(named[::-1], draw_id, spec)
    assert sum(one.target for one in parts.values()) == target
    limits = [one.max_groups for one in parts.values()]
    assert sum(one or 0 for one in limits) == (max_groups or 0)
    assert all((one is None) == (max_groups is None) for one in limits)
    for one in parts.values():
        DrawSpec.model_validate(one.model_dump())
        assert (one.deadline_s, one.policy_version) == (9, 3)
    assert list(parts) == ranking(named, draw_id)[: len(parts)]


def test_limits_of_a_sampler_are_divided() -> None:
    spec = SamplerSpec(groups_at_once=5, groups_ahead=4)
    part = sampler_share(spec, 2)
    assert (part.groups_at_once, part.groups_ahead) == (3, 2)
    assert sampler_share(SamplerSpec(), 2) == SamplerSpec()


@given(fronts, st.lists(st.integers(0, 8), min_size=8, max_size=8))
def test_candidates_go_to_fronts_that_want_them(named: list[str], numbers: list[int]) -> None:
    wanted = dict(zip(named, numbers, strict=False))
    assume(sum(wanted.values()))
    groups = [scored(f"c{number}", 0, 1) for number in range(sum(wanted.values()))]
    parts = allot(Places(named), "s", groups, wanted)
    assert {front: len(part) for front, part in parts.items()} == wanted
    assert sorted(one.group_id for part in parts.values() for one in part) == sorted(
        one.group_id for one in groups
    )


def test_candidates_that_were_fed_before_go_where_they_went() -> None:
    places = Places(["http://a", "http://b"])
    groups = [scored(f"c{number}", 0, 1) for number in range(8)]
    places.remember((cells.candidate_key("s", one.group_id) for one in groups), "http://b")
    parts = allot(places, "s", groups, {"http://a": 8, "http://b": 0})
    assert parts == {"http://a": [], "http://b": groups}
    assert allot(places, "other", groups, {"http://a": 8, "http://b": 0})["http://a"] == groups


def test_addresses_are_separated_by_commas() -> None:
    assert fronts_in("http://a:8080/") == ["http://a:8080/"]
    assert fronts_in("http://a:8080/, http://b:8080") == ["http://a:8080", "http://b:8080"]
    with pytest.raises(ProRLError, match="empty address"):
        fronts_in("http://a:8080,")
    with pytest.raises(ProRLError, match="twice"):
        fronts_in("http://a:8080,http://a:8080/")


def test_keys_of_rollouts_and_engines() -> None:
    assert group_id_of("s:1:c.2.13") == "s:1:c.2"
    assert group_id_of("g") == "g"
    assert engine_key("http://gpu:8000/") == engine_key("gpu:8000") == "gpu:8000"
