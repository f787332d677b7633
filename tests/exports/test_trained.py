"""Labels of exports against the rows that the trainers' plug-ins make of the same rollouts."""

from hypothesis import given
from hypothesis import strategies as st

from prorl_service.client.trainable import failure_of, token_rewards, trained_segments
from prorl_service.exports import sft, tokens
from prorl_service.exports.transcript import ExportRecord, Transcriber
from prorl_service.schemas import (
    NOT_SAMPLED,
    Blame,
    ErrorInfo,
    FinishReason,
    Message,
    Rollout,
    RolloutState,
    Sampling,
    Segment,
    SegmentKind,
    Timings,
    Trajectory,
)
from prorl_service.tokens.chat import ChatFormat
from prorl_trl.convert import row_of
from prorl_verl.rows import rows_of
from tests import builders
from tests.client.rewarded import rewarded_rollouts

KINDS: tuple[SegmentKind, ...] = ("main", "compaction", "subagent", "auxiliary")
ERROR = ErrorInfo(kind="SandboxError", blame=Blame.SANDBOX, message="it died")


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    mask = draw(st.lists(st.integers(0, 1), min_size=1, max_size=8))
    first = draw(st.integers(0, 50))
    return Segment(
        prompt_ids=draw(st.lists(st.integers(0, 50), min_size=1, max_size=3)),
        response_ids=[first + place for place in range(len(mask))],
        loss_mask=mask,
        logprobs=[-0.5 * one for one in mask],
        policy_versions=[3 if one else NOT_SAMPLED for one in mask],
        kind=draw(st.sampled_from(KINDS)),
        is_trained=draw(st.booleans()),
    )


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    chains = draw(st.lists(segments(), min_size=1, max_size=4))
    chains[0].loss_mask[0], chains[0].policy_versions[0] = 1, 3  # an agent has at least one turn
    turns = [
        builders.turn(
            number,
            place,
            place + 1,
            is_abandoned=draw(st.booleans()),
            reward=draw(st.sampled_from([None, 0.5])),
        )
        for number, chain in enumerate(chains)
        for place, sampled in enumerate(chain.loss_mask)
        if sampled
    ]
    return Trajectory(
        segments=chains,
        turns=turns,
        finish_reason=draw(st.sampled_from(FinishReason)),
        sampling=Sampling(),
    )


@st.composite
def rollouts(draw: st.DrawFn) -> Rollout:
    return builders.rollout(
        state=draw(st.sampled_from(RolloutState)),
        error=draw(st.sampled_from([None, None, None, ERROR])),
        reward=draw(st.sampled_from([None, 0.0, 1.0])),
        trajectory=draw(trajectories()),
        timings=Timings(queue_s=0, init_s=0, run_s=0, eval_s=0, waited_s=0),
    )


def labelled(row: tokens.Row) -> tuple[list[int], list[int]]:
    """What trainers take of an exported row: the response, and its mask by the labels."""
    before = row["prompt_length"]
    mask = [int(label != tokens.IGNORED) for label in row["labels"]]
    assert mask == row["loss_mask"]
    assert not any(mask[:before])
    return row["input_ids"][before:], mask[before:]


@given(rollouts())
def test_exports_label_what_verls_plug_in_trains_on_unless_it_was_cut_off(
    rollout: Rollout,
) -> None:
    exported = [labelled(row) for row in tokens.rows(ExportRecord(rollout))]
    live = [
        (row.response_ids, row.response_mask) for row in rows_of(rollout, max_response_tokens=99)
    ]
    kept = [one for one in exported if any(one[1])]
    if rollout.trajectory is not None and rollout.trajectory.finish_reason is FinishReason.FINISHED:
        assert sorted(kept) == sorted(live)
    else:
        assert kept == []


@given(rewarded_rollouts())
def test_exports_put_rewards_on_the_tokens_that_verls_plug_in_puts_them_on(
    rollout: Rollout,
) -> None:
    exported = {row["segment"]: row for row in tokens.rows(ExportRecord(rollout))}
    assert rollout.trajectory is not None
    numbers = {id(one): number for number, one in enumerate(rollout.trajectory.segments)}
    rows = rows_of(rollout, max_response_tokens=99)
    for segment, row in zip(trained_segments(rollout), rows, strict=True):
        found = exported[numbers[id(segment)]]
        before = found["prompt_length"]
        assert found["token_rewards"][:before] == [0.0] * before
        scores = token_rewards(row.reward, row.turn_rewards, row.response_mask)
        assert found["token_rewards"][before:] == scores
        assert sum(found["token_rewards"]) == rollout.reward


@given(rollouts())
def test_exports_label_what_trls_plug_in_trains_on(rollout: Rollout) -> None:
    exported = [labelled(row) for row in tokens.rows(ExportRecord(rollout))]
    assert rollout.trajectory is not None
    row = row_of(rollout, eos_id=0, segments="longest", overlong="mask")
    if failure_of(rollout) is None and any(row.env_mask):
        assert (row.completion_ids, row.env_mask) in exported
    else:
        assert not any(any(mask) for _, mask in exported)


@given(rollouts())
def test_columns_say_kind_training_and_abandoned_turns_and_all_segments_labels_all(
    rollout: Rollout,
) -> None:
    assert rollout.trajectory is not None
    default = [*tokens.rows(ExportRecord(rollout))]
    everything = [*tokens.rows(ExportRecord(rollout), all_segments=True)]
    for number, (row, whole) in enumerate(zip(default, everything, strict=True)):
        segment = rollout.trajectory.segments[number]
        assert row["kind"] == segment.kind
        assert row["is_trained"] == any(row["loss_mask"])
        assert labelled(whole)[1] == segment.loss_mask
        assert {name: one for name, one in row.items() if name not in ("labels", "loss_mask")} == {
            name: one for name, one in whole.items() if name not in ("labels", "loss_mask")
        }
        thrown_away = {
            turn.start
            for turn in rollout.trajectory.turns
            if turn.segment == number and turn.is_abandoned
        }
        told = row["is_abandoned"][row["prompt_length"] :]
        assert {place for place, one in enumerate(told) if one} == thrown_away


@given(st.data())
def test_conversations_are_exported_for_segments_with_labels_alone(
    model_chat: ChatFormat, data: st.DataObject
) -> None:
    rollout = data.draw(rollouts())
    assert rollout.trajectory is not None
    for segment in rollout.trajectory.segments:
        messages = [Message(role="user", content="1 + 2")]
        segment.prompt_ids = model_chat.prompt_ids(messages)
    transcriber = Transcriber(model_chat)
    trained = [row["segment"] for row in tokens.rows(ExportRecord(rollout)) if row["is_trained"]]
    found = [*sft.rows(ExportRecord(rollout), transcriber)]
    assert [row["segment"] for row in found] == trained
    assert all(row["is_trained"] for row in found)
    told = {
        row["segment"]: row
        for row in sft.rows(ExportRecord(rollout), transcriber, all_segments=True)
    }
    assert set(trained) <= set(told)
    for number, row in told.items():
        own = sorted(
            (turn for turn in rollout.trajectory.turns if turn.segment == number),
            key=lambda turn: turn.start,
        )
        assert row["kind"] == rollout.trajectory.segments[number].kind
        assert row["is_abandoned"] == [turn.is_abandoned for turn in own]
        assert row["turn_rewards"] == [turn.reward for turn in own]
