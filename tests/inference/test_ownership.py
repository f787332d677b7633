"""The lease of the policy: who may have it, whatever the order of claims, pushes and pauses."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.errors import Conflict, PolicyTaken, PolicyUnclaimed
from prorl_service.inference.ownership import PolicyOwner
from prorl_service.schemas import PolicyClaim
from tests.trainers import training

LEASE_S = 60.0


def claim(name: str, process: str = "1", **options: bool) -> PolicyClaim:
    return PolicyClaim(training=training(name, process), lease_s=LEASE_S, **options)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_another_training_is_refused_in_one_line_that_says_whose_policy_it_is() -> None:
    owner = PolicyOwner()
    assert owner.claim(claim("first"))
    with pytest.raises(PolicyTaken) as refusal:
        owner.claim(claim("second"))
    assert "\n" not in refusal.value.message
    for said in ("training first", "user ada", "pid 4711", "on node1", "since ", "last heard"):
        assert said in refusal.value.message
    assert "take_over" in refusal.value.hint


def test_a_lease_that_lapsed_costs_nothing_until_another_claims(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    owner = PolicyOwner()
    owner.claim(claim("first"))
    clock.now += 2 * LEASE_S
    owner.check(training("first").key)  # renews it
    with pytest.raises(PolicyTaken):
        owner.claim(claim("second"))
    clock.now += 2 * LEASE_S
    assert owner.claim(claim("second"))


def test_a_released_policy_is_free_immediately_and_after_a_restart_too() -> None:
    owner = PolicyOwner()
    owner.claim(claim("first"))
    kept = owner.to_json()
    with pytest.raises(PolicyTaken):
        PolicyOwner(kept).claim(claim("second"))
    owner.release()
    assert PolicyOwner(owner.to_json()).claim(claim("second"))
    assert owner.claim(claim("second"))


def test_nobody_pushes_to_a_service_that_knows_no_training() -> None:
    with pytest.raises(PolicyUnclaimed, match="does not hold the policy"):
        PolicyOwner().check("a.1")
    PolicyOwner().check_weights(None)


NAMES = st.sampled_from(["a", "b"])
PROCESSES = st.sampled_from(["1", "2"])
MOVES = st.one_of(
    st.tuples(st.just("claim"), NAMES, PROCESSES, st.sampled_from(["", "take_over", "is_renewal"])),
    st.tuples(st.just("check"), NAMES, PROCESSES, st.just("")),
    st.tuples(st.just("wait"), st.sampled_from([10, 40, 70]), st.just(""), st.just("")),
    st.tuples(st.sampled_from(["release", "restart"]), st.just(""), st.just(""), st.just("")),
)


@given(st.lists(MOVES, max_size=40))
def test_the_policy_changes_hands_only_by_a_claim_that_may_have_it(
    moves: list[tuple[str, ...]],
) -> None:
    """Compares the lease with a model of what it promises."""
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(time, "monotonic", clock.monotonic)
        owner, holder, heard, released = PolicyOwner(), "", 0.0, False
        for kind, name, process, how in moves:
            key = f"{name}.{process}"
            is_live = bool(holder) and not released and clock.now - heard < LEASE_S
            match kind:
                case "wait":
                    clock.now += float(name)
                    continue
                case "restart":
                    if holder:
                        owner, heard = PolicyOwner(owner.to_json()), clock.now
                    released = bool(holder) and not is_live
                    continue
                case "release":
                    owner.release()
                    released = bool(holder)
                    continue
                case "claim":
                    free = not holder or key == holder
                    same = holder.startswith(f"{name}.") or how == "take_over" or not is_live
                    may = free or (how != "is_renewal" and same)
                    asked = claim(name, process, **({how: True} if how else {}))
                    released = released and not may
                case _:
                    may = key == holder
            try:
                if kind == "claim":
                    assert owner.claim(asked) == (key != holder)
                else:
                    owner.check(key)
                assert may
                holder, heard = key, clock.now
            except Conflict:
                assert not may
            assert owner.key == (holder or None)
