"""Whole turns as bytes: what was sampled comes back to the bit."""

from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.resume.turns import SavedIds, SavedTurn, rebuilt
from prorl_service.tokens.ledger import Ledger
from tests import builders

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
) -> tuple[list[SavedTurn], Ledger]:
    """Records the turns, and keeps each. Returns them with the ledger."""
    ledger, kept, prompt = Ledger(), list[SavedTurn](), array("i")
    for own_prompt, sampled, following in turns:
        prompt = array("i", own_prompt or ([] if kept else [7])) or prompt
        known = {i: len(chain.ids) for i, chain in enumerate(ledger.chains)}
        ids, logprobs, versions = (list(column) for column in zip(*sampled, strict=True))
        span = ledger.record(prompt, ids, logprobs, versions)
        turn = builders.turn(span.segment, span.start, span.stop, text="é", model_s=0.5)
        added = ledger.before(span.segment, span.start)[known.get(span.segment, 0) :]
        kept.append(
            SavedTurn(added, array("i", ids), array("f", logprobs), array("i", versions), turn)
        )
        prompt = ledger.ids + array("i", following)
    return kept, ledger


@given(TURNS)
def test_a_replayed_rollout_is_the_rollout(
    turns: list[tuple[list[int] | None, Sampled, list[int]]],
) -> None:
    kept, ledger = played(turns)
    read = [SavedTurn.from_bytes(one.to_bytes()) for one in kept]
    assert read == kept
    again = rebuilt(read)
    assert again.to_segments() == ledger.to_segments()
    assert again.versions == ledger.versions


@given(TURNS, st.none() | IDS, st.integers(0, 40), st.integers(0, 9))
def test_any_prompt_comes_back(
    turns: list[tuple[list[int] | None, Sampled, list[int]]],
    ids: list[int] | None,
    length: int,
    segment: int,
) -> None:
    """A part of a conversation and something new, or only one of them."""
    _, ledger = played(turns)
    chain = ledger.chains[segment % len(ledger.chains)]
    prompt = chain.ids[:length] + array("i", ids or [])
    kept = SavedIds.of(prompt, ledger)
    assert SavedIds.model_validate_json(kept.model_dump_json()) == kept
    assert kept.within(ledger) == prompt
    if length >= len(chain.ids):  # it continues the conversation
        assert len(kept.rest) <= len(ids or [])


def test_a_missing_turn_is_noticed() -> None:
    kept, _ = played([(None, [(1, -1.0, 0)], [2])] * 3)
    with pytest.raises(ValueError, match="a turn is missing"):
        rebuilt([kept[0], kept[2]])
    with pytest.raises(ValueError, match="a turn is missing"):
        rebuilt(kept[1:])


@pytest.mark.parametrize("cut", [0, 10, -1])
def test_cut_bytes_are_refused(cut: int) -> None:
    kept, _ = played([(None, [(1, -1.0, 0)], [2])])
    with pytest.raises(ValueError, match="no kept turn"):
        SavedTurn.from_bytes(kept[0].to_bytes()[:cut])
