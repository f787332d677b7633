import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from prorl_service import errors
from prorl_service.errors import STAGE_BLAME, ProRLError, StageTimeout
from prorl_service.schemas import (
    LEGAL_MOVES,
    TERMINAL_STATES,
    Group,
    RolloutState,
    Segment,
    Stage,
)
from prorl_service.schemas.arrays import PACKED
from prorl_service.schemas.groups import SubmitRequest
from prorl_service.schemas.suggestions import nearest, nearest_fields
from tests import builders

int32 = st.integers(-(2**31), 2**31 - 1)


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    size = draw(st.integers(0, 30))

    def array(item: st.SearchStrategy[int] | st.SearchStrategy[float]) -> list[int] | list[float]:
        return draw(st.lists(item, min_size=size, max_size=size))

    return Segment.model_validate(
        {
            "prompt_ids": draw(st.lists(int32)),
            "response_ids": array(int32),
            "loss_mask": array(st.integers(0, 1)),
            "logprobs": array(st.floats(-100, 0, width=32)),
            "policy_versions": array(st.integers(-1, 3)),
        }
    )


@given(segments())
def test_both_spellings_of_arrays_are_exact(segment: Segment) -> None:
    packed = segment.model_dump_json(context=PACKED)
    assert Segment.model_validate_json(packed) == segment
    assert Segment.model_validate_json(segment.model_dump_json()) == segment


def test_packed_arrays_are_less_than_half_of_plain_ones() -> None:
    size = 10_000
    ids, logprobs = [150_000] * size, [-0.6931471824645996] * size
    segment = builders.segment([1] * size, 7, response_ids=ids, logprobs=logprobs)
    assert len(segment.model_dump_json(context=PACKED)) * 2 < len(segment.model_dump_json())


BROKEN = [
    *[("prompt_ids", {key: value}, "prompt_ids") for key, value in (
        ("b64", "AAA="), ("b64", "!!"), ("base64", ""), ("b64", 3), ("runs", [[1, 2]]),
    )],
    *[("loss_mask", {"runs": runs}, "negative length, or more than") for runs in (
        [[1, 2**24 + 1]], [[1, 2**40], [0, -(2**40)]], [[1, -1]],
    )],
    ("logprobs", [], "logprobs must be as long"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value", "problem"), BROKEN)
def test_broken_arrays_are_refused(field: str, value: object, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        Segment.model_validate(builders.segment().model_dump() | {field: value})


def test_every_state_is_reachable_and_can_end() -> None:
    reached = {RolloutState.QUEUED}
    for state in RolloutState:  # in the order of a rollout's life
        assert state in reached
        reached |= LEGAL_MOVES[state]
        assert state in TERMINAL_STATES or LEGAL_MOVES[state] & TERMINAL_STATES
    assert {RolloutState.DONE, RolloutState.FAILED, RolloutState.CANCELLED} == TERMINAL_STATES


def all_errors(base: type[ProRLError]) -> Iterator[type[ProRLError]]:
    yield base
    for kind in base.__subclasses__():
        yield from all_errors(kind)


KINDS = [
    kind
    for kind in sorted(set(all_errors(ProRLError)) - {StageTimeout}, key=str)
    if kind.__module__ == errors.__name__
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_keeps_its_fields_on_the_wire(kind: type[ProRLError]) -> None:
    info = kind("it broke", hint="mend it").info(Stage.RUN)
    assert json.loads(info.model_dump_json())["kind"] == kind.__name__
    assert (info.blame, info.retryable, info.stage) == (kind.blame, kind.retryable, Stage.RUN)


@pytest.mark.parametrize("stage", list(Stage))
def test_a_timeout_names_the_budget_to_raise(stage: Stage) -> None:
    info = StageTimeout(stage, 1.5).info(stage)
    assert f"{stage.value}_timeout_s" in info.hint
    assert info.blame is STAGE_BLAME[stage]


TASK = {"task_id": "t", "agent": "math", "messages": [{"role": "user", "content": "?"}]}


@pytest.mark.parametrize(
    ("group", "hint"),
    [
        ({"limits": {"max_turn": 3}}, "did you mean max_turns?"),
        (
            {"grup_id": "g", "limits": {"max_turn": 3}},
            "did you mean max_turns? did you mean group_id?",
        ),
        ({"task": TASK | {"agnt": "math"}}, "did you mean agent?"),
        ({"colour": "red"}, ""),
        ({"n": -1}, ""),
    ],
)
def test_the_nearest_field_of_the_same_object_is_offered(
    group: dict[str, object], hint: str
) -> None:
    given = {"groups": [{"group_id": "g", "task": TASK} | group]}
    with pytest.raises(ValidationError) as refused:
        SubmitRequest.model_validate(given)
    assert nearest_fields(refused.value.errors(), SubmitRequest) == hint


def test_no_model_knows_no_fields() -> None:
    with pytest.raises(ValidationError) as refused:
        Group.model_validate({"grup_id": "g"})
    assert nearest_fields(refused.value.errors(), None) == ""
    assert nearest("wait", ["n", "state"]) == ""
