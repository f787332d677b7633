"""A rollout in two parts, its summary and its content, which are joined without being read."""

import json
import secrets

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.client.retries import PartsReception
from prorl_service.rollouts.record import EndedRollout, content_of, joined, summary_of
from prorl_service.schemas import (
    CONTENT,
    Figures,
    FinishReason,
    Rollout,
    RolloutState,
    Sampling,
    Trajectory,
)
from prorl_service.schemas.arrays import PACKED
from tests import builders

TRAJECTORY = Trajectory(
    segments=[builders.segment([1, 1, 0])],
    turns=[builders.turn(stop=3, text="é\u2028")],
    finish_reason=FinishReason.FINISHED,
    sampling=Sampling(),
)


def rollout(index: int = 0) -> Rollout:
    return builders.rollout(
        f"g.{index}",
        reward=1.0,
        # Keys of agents may look like the rollout's own.
        reward_components={"trajectory": 1.0, "report": 0.0},
        figures=Figures.of(TRAJECTORY),
        result_id=f"{index:032x}",
        trajectory=TRAJECTORY,
        report={"said": '{"trajectory":'},
    )


def test_parts_join_to_the_whole() -> None:
    whole = rollout()
    packed = joined(summary_of(whole), content_of(whole))
    assert Rollout.model_validate_json(packed) == whole
    ended = EndedRollout(packed, summary_of(whole))
    assert ended.parts() == (summary_of(whole), content_of(whole))
    changed = whole.model_copy(update={"attempt": 3})
    again = joined(summary_of(changed), ended.parts()[1])
    assert Rollout.model_validate_json(again) == changed


def test_parts_of_a_rollout_that_an_earlier_version_wrote() -> None:
    whole = rollout()
    fields = json.loads(whole.model_dump_json(context=PACKED, exclude={"figures"}))
    content = {name: fields.pop(name) for name in ("trajectory", "report")}
    packed = json.dumps(content | fields).encode()
    old_summary = json.dumps(fields | dict.fromkeys(content)).encode()
    parts = EndedRollout(packed, old_summary).parts()
    assert Rollout.model_validate_json(joined(*parts)) == whole


def test_a_result_of_a_version_without_identities_gets_the_same_one_each_time() -> None:
    old = rollout().model_copy(update={"result_id": None})
    summary = summary_of(old)
    packed = (
        summary[:-1] + b"," + old.model_dump_json(include=set(CONTENT), context=PACKED)[1:].encode()
    )
    first, second = (EndedRollout.stored(summary, packed).parts() for _ in range(2))
    assert first == second
    assert Rollout.model_validate_json(joined(*first)).result_id is not None


def test_a_result_that_an_earlier_front_left_at_a_service_is_a_failure_with_the_reason() -> None:
    left = EndedRollout.stored(summary_of(rollout()), b'{"held_by":"node-1"}')
    found = left.to_wire()
    assert found.state is RolloutState.FAILED
    assert found.error is not None
    assert "--durability node" in found.error.message
    assert (found.reward, found.trajectory, found.reward_components) == (None, None, {})
    assert Rollout.model_validate_json(joined(*left.parts())) == found


NUMBERS = st.floats(allow_nan=False, allow_infinity=False, width=32)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
REPORTS = st.dictionaries(
    st.sampled_from(["result_id", "trajectory", "report", '{"result_id":"']) | TEXTS,
    TEXTS | st.dictionaries(st.just("result_id"), TEXTS | st.integers(-5, 5)),
)


@st.composite
def results(draw: st.DrawFn) -> Rollout:
    """Results that differ in as little as may be: binary rewards, equal tokens, equal reports."""
    return rollout().model_copy(
        update={
            "reward": draw(st.sampled_from([0.0, 1.0]) | NUMBERS),
            "reward_components": draw(
                st.dictionaries(st.sampled_from(["result_id", "a"]), NUMBERS)
            ),
            "figures": draw(st.sampled_from([None, Figures.of(TRAJECTORY)])),
            "report": draw(st.none() | REPORTS),
            "result_id": secrets.token_hex(16),
        }
    )


@given(results(), results())
def test_parts_of_two_results_are_never_joined(one: Rollout, other: Rollout) -> None:
    whole = {each.result_id: joined(summary_of(each), content_of(each)) for each in (one, other)}
    parts = [EndedRollout(whole[each.result_id], summary_of(each)).parts() for each in (one, other)]
    assert [Rollout.model_validate_json(joined(*each)) for each in parts] == [one, other]
    with pytest.raises(ValueError, match="not of one result"):
        joined(parts[0][0], parts[1][1])
    reception = PartsReception(["g.0"], 60, 0, 60)
    reception.request()
    with pytest.raises(httpx.RemoteProtocolError, match=r"follows g\.0"):
        list(reception.feed(parts[0][0] + b"\n" + parts[1][1] + b"\n"))


def stream_of(*rollouts: Rollout) -> bytes:
    lines = [b"", *(part for one in rollouts for part in (summary_of(one), content_of(one))), b""]
    return b"\n".join(lines)


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_parts_are_received_over_chunks_and_connections(size: int) -> None:
    reception = PartsReception(["g.0", "g.1"], 60, 0, 60)
    sent, cut = stream_of(rollout(), rollout(1)), len(stream_of(rollout())) + 40
    received = []
    for stream in (sent[:cut], sent):
        reception.request()
        for start in range(0, len(stream), size):
            received += list(reception.feed(stream[start : start + size]))
    assert [summary.rollout_id for summary, _ in received] == ["g.0", "g.1"]
    for summary, content in received:
        whole = Rollout.model_validate_json(joined(summary_of(summary), content))
        assert whole == rollout(summary.index)


def test_what_is_no_content_is_refused() -> None:
    reception = PartsReception(["g.0"], 60, 0, 60)
    with pytest.raises(httpx.RemoteProtocolError, match=r"follows g\.0"):
        list(reception.feed(summary_of(rollout()) + b'\n{"error": 1}\n'))
