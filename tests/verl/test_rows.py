"""Conversion of rollouts to rows: VeRL trains on exactly what was sampled."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from verl.trainer.ppo.core_algos import (
    compute_grpo_outcome_advantage,
    compute_reinforce_plus_plus_outcome_advantage,
)

from prorl_service.client.trainable import (
    SoftPunishment,
    checked,
    failure_of,
    trained_segments,
)
from prorl_service.schemas import (
    NOT_SAMPLED,
    FinishReason,
    Rollout,
    Segment,
    SegmentKind,
    Turn,
)
from prorl_verl.rows import rows_of
from prorl_verl.tensors import fields_of, keys_of, tag_of
from tests import builders
from tests.client.rewarded import rewarded_rollouts

METRICS = {"acc", "overlong_penalty", "cut_off"}


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    tokens = draw(st.lists(st.tuples(st.integers(0, 999), st.booleans()), min_size=1, max_size=30))
    mask = [int(sampled) for _, sampled in tokens]
    versions = [draw(st.integers(0, 5)) if one else NOT_SAMPLED for one in mask]
    logprobs = [-draw(st.floats(0, 9, width=32)) if one else 0.0 for one in mask]
    return Segment(
        prompt_ids=draw(st.lists(st.integers(0, 999), min_size=1, max_size=9)),
        response_ids=[token for token, _ in tokens],
        loss_mask=mask,
        logprobs=logprobs,
        policy_versions=versions,
    )


def rollout_of(parts: list[Segment], **fields: Any) -> Rollout:
    return builders.rollout("g.0", *parts, **{"reward": 0.5, **fields})


def segment(mask: list[int], version: int = 3) -> Segment:
    return builders.segment(mask, version)


@given(st.lists(segments(), min_size=1, max_size=4), st.integers(1, 30), st.floats(-1, 1, width=32))
def test_rows_hold_what_was_sampled(parts: list[Segment], limit: int, reward: float) -> None:
    rollout = rollout_of(parts, reward=reward)
    rows = rows_of(rollout, max_response_tokens=limit)
    kept = [one for one in parts if any(one.loss_mask[:limit])]
    assert len(rows) == len(kept)
    for row, part in zip(rows, kept, strict=True):
        assert row.prompt_ids == part.prompt_ids
        assert row.response_ids == part.response_ids[:limit]
        assert row.response_mask == part.loss_mask[:limit]
        assert row.logprobs == part.logprobs[:limit]
        sampled = [one for one in part.policy_versions if one != NOT_SAMPLED]
        assert (row.min_version, row.max_version) == (min(sampled), max(sampled))
        assert row.reward == reward
        assert set(row.metrics) == METRICS


@given(rewarded_rollouts(), st.integers(1, 12), st.booleans())
def test_each_turns_reward_is_on_its_last_token_and_the_rest_on_the_last_sampled_one(
    rollout: Rollout, limit: int, is_punished: bool
) -> None:
    assert rollout.trajectory is not None
    overlong = SoftPunishment(8, 4) if is_punished else None
    rows = rows_of(rollout, max_response_tokens=limit, overlong=overlong)
    earned = {
        rollout.trajectory.segments[turn.segment].response_ids[turn.stop - 1]: turn.reward or 0.0
        for turn in rollout.trajectory.turns
    }
    assert len(rows) == len(
        [one for one in trained_segments(rollout) if any(one.loss_mask[:limit])]
    )
    for row in rows:
        scores = dict(zip(row.response_ids, fields_of(row, {})["rm_scores"].tolist(), strict=True))
        assert sum(scores.values()) == row.reward
        sampled = [id_ for id_, one in zip(row.response_ids, row.response_mask, strict=True) if one]
        del scores[sampled[-1]]
        assert scores == {id_: earned.get(id_, 0.0) for id_ in scores}


@given(rewarded_rollouts(), st.integers(1, 12))
def test_verls_estimators_see_what_is_still_to_be_earned_or_the_total(
    rollout: Rollout, limit: int
) -> None:
    for row in rows_of(rollout, max_response_tokens=limit):
        scores = fields_of(row, {})["rm_scores"][None]
        mask = torch.tensor([row.response_mask])
        index = np.array(["g"])
        _, of_group = compute_grpo_outcome_advantage(
            scores, mask, index, norm_adv_by_std_in_grpo=False
        )
        assert of_group[mask == 1].tolist() == [row.reward] * sum(row.response_mask)
        if sum(row.response_mask) == 1:
            continue  # whitening takes two
        _, returns = compute_reinforce_plus_plus_outcome_advantage(
            scores, mask, config=SimpleNamespace(gamma=1.0)
        )
        sampled = [place for place, one in enumerate(row.response_mask) if one]
        earned = [sum(row.turn_rewards.get(one, 0.0) for one in range(at)) for at in sampled]
        assert returns[mask == 1].tolist() == [row.reward - one for one in earned]


@given(segments().filter(lambda one: any(one.loss_mask)))
def test_tensors_are_unpadded_and_agree(part: Segment) -> None:
    (row,) = rows_of(rollout_of([part]), max_response_tokens=99)
    fields = fields_of(row, {"uid": "u", "data_source": "s", "global_steps": 4})
    length = len(row.response_ids)
    for name in ("responses", "response_mask", "loss_mask", "rollout_log_probs", "rm_scores"):
        assert fields[name].shape == (length,)
    assert fields["input_ids"].tolist() == row.prompt_ids + row.response_ids
    assert fields["position_ids"].tolist() == list(range(len(row.prompt_ids) + length))
    last = max(place for place, one in enumerate(row.response_mask) if one)
    assert fields["rm_scores"].sum() == fields["rm_scores"][last] == torch.tensor(0.5)
    assert fields["rollout_log_probs"].dtype == fields["rm_scores"].dtype == torch.float32
    assert fields["responses"].dtype == fields["response_mask"].dtype == torch.int64
    assert fields["uid"] == "u"
    assert "global_steps" not in fields
    tag = tag_of(row, 4)
    assert tag["seq_len"] == tag["prompt_len"] + tag["response_len"] == len(fields["input_ids"])
    assert all(type(tag[name]) is int for name in tag if name != "status")


def test_segments_keep_their_order_and_need_a_sampled_token() -> None:
    parts = [segment([1, 1]), segment([0, 0]), segment([0, 1])]
    rows = rows_of(rollout_of(parts), max_response_tokens=99)
    assert [row.response_mask for row in rows] == [[1, 1], [0, 1]]
    assert keys_of("u", 3, rows) == ["u_3_0", "u_3_1"]


def test_punishment_is_in_the_reward_but_not_in_acc() -> None:
    rollout = rollout_of([segment([1] * 8)], reward=1.0, finish_reason=FinishReason.LENGTH)
    (row,) = rows_of(rollout, max_response_tokens=99, overlong=SoftPunishment(8, 4))
    assert row.reward == 0.0
    assert row.metrics == {"acc": 1.0, "overlong_penalty": -1.0, "cut_off": 1.0}


def test_only_segments_that_are_trained_on_are_rows_and_the_agents_own_come_last() -> None:
    kinds: list[SegmentKind] = ["main", "auxiliary", "subagent"]
    parts = [segment_of(kind, number) for number, kind in enumerate(kinds)]
    rows = rows_of(rollout_of(parts), max_response_tokens=9)
    assert [row.prompt_ids for row in rows] == [[2], [0]]


def segment_of(kind: SegmentKind, number: int) -> Segment:
    return builders.segment([1], prompt_ids=[number], kind=kind, is_trained=kind != "auxiliary")


def turn_of(backend: str) -> Turn:
    return builders.turn(backend=backend)


@given(
    st.lists(segments(), min_size=1, max_size=3),
    st.sets(st.integers(0, 5)),
    st.lists(st.sampled_from(["here:1", "there:2"]), max_size=3),
)
def test_tokens_of_other_weights_or_engines_are_refused(
    parts: list[Segment], versions: set[int], engines: list[str]
) -> None:
    rollout = rollout_of(parts)
    assert rollout.trajectory is not None
    rollout.trajectory.turns.extend(map(turn_of, engines))
    found = {one for part in parts for one in part.policy_versions} - {NOT_SAMPLED}
    is_own = found <= versions and "there:2" not in engines
    if not found:
        return
    error = failure_of(checked(rollout, engine="here:1", versions=versions))
    assert (error is None) == is_own
    if error is not None:
        assert "this trainer's engines" in error.message or error.kind == "OtherPolicy"
