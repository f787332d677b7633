"""Whole turns as bytes: what was sampled comes back to the bit."""

from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.agents.kept import KeptTurn, TurnState, rebuilt
from prorl_service.schemas import Turn
from prorl_service.tokens.ledger import Ledger

IDS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=6)
SAMPLED = st.lists(
    st.tuples(st.integers(0, 2**31 - 1), st.floats(-50, 0, width=32), st.integers(0, 2**31 - 1)),
    min_size=1,
    max_size=6,
)
TURNS = st.lists(st.tuples(st.none() | IDS, SAMPLED, IDS), min_size=1, max_size=6)
"""Of each turn: its prompt if it begins a chain, what was sampled, and what answers it."""

Sampled = Sequence[tuple[int, float, int]]


def played(
    turns: Sequence[tuple[list[int] | None, Sampled, list[int]]],
) -> tuple[list[KeptTurn], Ledger, "array[int]"]:
    """Records the turns, and keeps each. Returns them with the ledger and the next prompt."""
    ledger, kept, prompt = Ledger(), list[KeptTurn](), array("i")
    for number, (own_prompt, sampled, following) in enumerate(turns):
        begun = array("i", own_prompt or ([7] if not kept else []))
        prompt = begun or prompt
        ids, logprobs, versions = (list(column) for column in zip(*sampled, strict=True))
        span = ledger.record(prompt, ids, logprobs, versions)
        turn = Turn(
            segment=span.segment,
            start=span.start,
            stop=span.stop,
            text="é",
            finish_reason="stop",
            model_s=0.5,
            backend="b",
        )
        state = TurnState(
            turn=turn, begun_calls=number + 1, worked_s=1.5, kept_at=2.5, agent={"a": 1}
        )
        kept.append(
            KeptTurn(
                begun,
                array("i", ids),
                array("f", logprobs),
                array("i", versions),
                array("i", following),
                state,
            )
        )
        prompt = ledger.ids + array("i", following)
    return kept, ledger, prompt


@given(TURNS)
def test_a_replayed_rollout_is_the_rollout(
    turns: list[tuple[list[int] | None, Sampled, list[int]]],
) -> None:
    kept, ledger, prompt = played(turns)
    again = Ledger()
    read = [KeptTurn.from_bytes(one.to_bytes()) for one in kept]
    assert read == kept
    assert rebuilt(read, again) == prompt
    assert again.to_segments() == ledger.to_segments()
    assert again.versions == ledger.versions


def test_a_missing_turn_is_noticed() -> None:
    kept, _, _ = played([(None, [(1, -1.0, 0)], [2])] * 3)
    with pytest.raises(ValueError, match="a turn is missing"):
        rebuilt([kept[0], kept[2]], Ledger())
    with pytest.raises(ValueError, match="the first turn is not kept"):
        rebuilt(kept[1:], Ledger())


@pytest.mark.parametrize("cut", [0, 10, -1])
def test_cut_bytes_are_refused(cut: int) -> None:
    kept, _, _ = played([(None, [(1, -1.0, 0)], [2])])
    with pytest.raises(ValueError, match="no kept turn"):
        KeptTurn.from_bytes(kept[0].to_bytes()[:cut])
