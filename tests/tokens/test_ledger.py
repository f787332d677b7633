from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.schemas import NOT_SAMPLED
from prorl_service.tokens.ledger import Ledger, Span

ids = st.lists(st.integers(0, 2**31 - 1), max_size=8)


@dataclass
class Seen:
    """One call as the engine saw it."""

    prompt: list[int]
    sampled: list[int]
    logprobs: list[float]
    versions: list[int]
    span: Span


@st.composite
def histories(draw: st.DrawFn) -> tuple[Ledger, list[Seen]]:
    """Draws a rollout's calls: extensions, retries of a prompt, compactions, empty samples."""
    ledger, calls = Ledger(), list[Seen]()
    for _ in range(draw(st.integers(1, 8))):
        fresh = draw(st.lists(st.integers(0, 99), min_size=1, max_size=8))
        kind = draw(st.sampled_from(["extend", "retry", "compact", "fresh"]))
        if not calls or kind == "fresh":
            prompt = fresh
        elif kind == "extend":
            prompt = [*ledger.ids, *fresh]
        elif kind == "retry":
            prompt = calls[-1].prompt
        else:
            prompt = list(ledger.ids[: draw(st.integers(1, len(ledger.ids)))])
        sampled = draw(ids)
        size = len(sampled)
        logprobs = draw(st.lists(st.floats(-50, 0, width=32), min_size=size, max_size=size))
        versions = draw(st.lists(st.integers(0, 9), min_size=size, max_size=size))
        span = ledger.record(prompt, sampled, logprobs, versions)
        calls.append(Seen(prompt, sampled, logprobs, versions, span))
    return ledger, calls


@given(histories())
def test_segments_hold_exactly_what_the_engine_saw(history: tuple[Ledger, list[Seen]]) -> None:
    ledger, calls = history
    segments = ledger.to_segments()
    for call in calls:
        segment, start, stop = segments[call.span.segment], call.span.start, call.span.stop
        assert segment.prompt_ids + segment.response_ids[:start] == call.prompt
        assert segment.response_ids[start:stop] == call.sampled
        assert segment.loss_mask[start:stop] == [1] * len(call.sampled)
        assert segment.logprobs[start:stop] == call.logprobs
        assert segment.policy_versions[start:stop] == call.versions


@given(histories())
def test_everything_not_sampled_is_masked(history: tuple[Ledger, list[Seen]]) -> None:
    ledger, calls = history
    segments = ledger.to_segments()
    assert sum(sum(segment.loss_mask) for segment in segments) == sum(
        len(call.sampled) for call in calls
    )
    for segment in segments:
        for mask, logprob, version in zip(
            segment.loss_mask, segment.logprobs, segment.policy_versions, strict=True
        ):
            assert mask == 1 or (logprob == 0.0 and version == NOT_SAMPLED)


def test_a_retried_turn_with_the_same_prompt_opens_a_segment() -> None:
    ledger = Ledger()
    ledger.record([1, 2], [3, 4], [-0.5, -0.25], [0, 0])
    span = ledger.record([1, 2], [5], [-1.0], [1])
    ledger.record([1, 2, 5, 6], [7], [-2.0], [1])
    first, second = ledger.to_segments()
    assert span == Span(1, 0, 1)
    assert (first.prompt_ids, first.response_ids) == ([1, 2], [3, 4])
    assert (second.prompt_ids, second.response_ids) == ([1, 2], [5, 6, 7])
    assert second.loss_mask == [1, 0, 1]


def test_unequal_lengths_record_nothing() -> None:
    ledger = Ledger()
    with pytest.raises(ValueError, match="same length"):
        ledger.record([1], [2, 3], [-0.5], [0, 0])
    assert ledger.chains == []


def test_a_conversation_continues_after_a_detour() -> None:
    ledger = Ledger()
    ledger.record([1], [2], [-0.5], [0])
    ledger.record([9], [8], [-0.5], [0])  # a sub-agent
    span = ledger.record([1, 2, 3], [4], [-0.5], [0])
    assert span == Span(0, 2, 3)
    assert list(ledger.ids) == [1, 2, 3, 4]
    assert [segment.prompt_ids for segment in ledger.to_segments()] == [[1], [9]]


@pytest.mark.parametrize(("token", "version"), [(2**31, 0), (3, 2**31)])
def test_a_value_out_of_range_leaves_no_half_turn(token: int, version: int) -> None:
    ledger = Ledger()
    ledger.record([1], [2], [-0.5], [0])
    before = ledger.to_segments()
    with pytest.raises(OverflowError):
        ledger.record([1, 2, 5], [token], [-0.5], [version])
    assert ledger.to_segments() == before
