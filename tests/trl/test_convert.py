"""The pure half of the plug-in, without TRL."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.client.metrics import metrics
from prorl_service.client.trainable import Overlong, failure_summary
from prorl_service.schemas import (
    Blame,
    ErrorInfo,
    FinishReason,
    Group,
    Limits,
    Rollout,
    RolloutState,
    Sampling,
    Segment,
    SegmentKind,
    Timings,
)
from prorl_trl.convert import (
    GroupMaker,
    Segments,
    TrlRow,
    columns,
    row_metrics,
    row_of,
    task_of,
    with_task,
)
from tests import builders

EOS = 2
QUESTION = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1 + 2"}]


def make_groups(prompts: list[Any], n: int, agent: str | None = "math") -> list[Group]:
    return GroupMaker(agent, Sampling(), Limits()).groups(prompts, n=n, name="run-0")


def make_segment(mask: list[int], last: int = EOS, version: int = 5) -> Segment:
    return builders.segment(mask, version, response_ids=[*range(10, 9 + len(mask)), last])


def make_rollout(*segments: Segment, **fields: Any) -> Rollout:
    own: dict[str, Any] = {
        "reward_components": {"right": 1.0},
        "timings": Timings(queue_s=4, init_s=1, run_s=4, eval_s=3, waited_s=2),
    }
    parts = segments or [make_segment([1, 0, 1])]
    return builders.rollout("r.0", *parts, turns=2, **(own | fields))


def of_kind(kind: SegmentKind, *, is_trained: bool, mask: list[int] | None = None) -> Segment:
    segment = make_segment(mask or [1, 0, 1])
    segment.kind, segment.is_trained = kind, is_trained
    return segment


def make_row(
    rollout: Rollout, segments: Segments = "refuse", overlong: Overlong = "mask"
) -> TrlRow:
    return row_of(rollout, eos_id=EOS, segments=segments, overlong=overlong)


# --- prompts to groups --------------------------------------------------------------------------


def test_a_task_travels_in_the_last_message() -> None:
    prompt = with_task(QUESTION, task_id="t1", agent="math", data={"answer": 3}, image="py:3.11")
    task = task_of(prompt, default_agent="other")
    assert (task.task_id, task.agent, task.image) == ("t1", "math", "py:3.11")
    assert task.data == {"answer": 3}
    assert [message.model_dump(exclude_defaults=True) for message in task.messages] == QUESTION
    assert all(set(message) == {"role", "content"} for message in QUESTION)


def test_keys_that_a_dataset_filled_up_are_ignored() -> None:
    prompt = with_task(QUESTION, task_id="t1", agent="math")
    filled = [{"prorl": None, "tool_calls": None, **message} for message in prompt]
    assert task_of(filled, default_agent=None) == task_of(prompt, default_agent=None)


def test_a_prompt_without_a_task_gets_an_id_from_its_content() -> None:
    task = task_of(QUESTION, default_agent="math")
    assert task.agent == "math"
    assert task.task_id == task_of([*QUESTION], default_agent="math").task_id
    assert task.task_id != task_of(QUESTION[1:], default_agent="math").task_id


@pytest.mark.parametrize(
    ("prompt", "agent", "message"),
    [
        ("1 + 2", "math", "needs conversational prompts"),
        (QUESTION, None, "names no agent"),
        ([{"role": "user", "content": [{"type": "image"}]}], "math", "messages.0: part 0 is"),
        ([{"role": "user", "content": "hi", "name": "bob"}], "math", "name"),
        ([{"role": "user", "content": "hi", "prorl": '{"taskid": "t"}'}], "math", "taskid"),
    ],
)
def test_unusable_prompts_are_refused(prompt: Any, agent: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        task_of(prompt, default_agent=agent)


def test_a_bad_task_is_refused_when_the_dataset_is_built() -> None:
    with pytest.raises(ValueError, match="task_id"):
        with_task(QUESTION, task_id="not an id", agent="math")


@given(blocks=st.lists(st.integers(0, 3), min_size=1, max_size=6), n=st.integers(1, 5))
def test_every_block_becomes_one_group(blocks: list[int], n: int) -> None:
    prompts = [[{"role": "user", "content": str(block)}] for block in blocks for _ in range(n)]
    groups = make_groups(prompts, n)
    assert [group.group_id for group in groups] == [f"run-0-{i}" for i in range(len(blocks))]
    assert [group.task.messages[0].content for group in groups] == [str(b) for b in blocks]
    assert {group.n for group in groups} == {n}


def test_prompts_that_are_not_in_blocks_are_refused() -> None:
    one, other = QUESTION, QUESTION[1:]
    with pytest.raises(ValueError, match="prompts 2 to 3 must be 2 copies of one prompt"):
        make_groups([one, one, one, other], 2)
    with pytest.raises(ValueError, match="3 prompts are not a multiple of num_generations=2"):
        make_groups([one, one, one], 2)


# --- rollouts to rows ---------------------------------------------------------------------------


def test_a_trajectory_becomes_a_row_token_for_token() -> None:
    row = make_row(make_rollout())
    assert row.prompt_ids == [7, 8]
    assert row.completion_ids == [10, 11, EOS]
    assert row.env_mask == [1, 0, 1]
    assert row.logprobs == [-0.5, 0.0, -0.5]
    assert (row.reward, row.turns, row.finish_reason) == (1.0, 2, "finished")
    assert (row.policy_version, row.seconds, row.queued_s) == (5, 6, 4)
    assert row.failure is None


def test_rewards_of_turns_are_parts_of_the_rollouts() -> None:
    rollout = make_rollout()
    assert rollout.trajectory is not None
    for turn in rollout.trajectory.turns:
        turn.reward = 0.25
    assert row_of(rollout, eos_id=EOS, segments="refuse", overlong="mask").reward == 1.0


def test_a_failed_rollout_is_one_token_without_weight_or_reward() -> None:
    error = ErrorInfo(kind="SandboxError", blame=Blame.SANDBOX, message="died", retryable=True)
    row = make_row(make_rollout(state=RolloutState.FAILED, error=error, reward=None))
    assert (row.completion_ids, row.env_mask, row.logprobs) == ([EOS], [0], [0.0])
    assert row.prompt_ids
    assert row.reward is None
    assert row.failure == error


def test_an_overlong_rollout_leaves_the_loss_but_keeps_its_reward() -> None:
    rollout = make_rollout(make_segment([1, 1], last=9), finish_reason=FinishReason.LENGTH)
    masked, kept = make_row(rollout, overlong="mask"), make_row(rollout, overlong="keep")
    assert masked.env_mask == [0, 0]
    assert kept.env_mask == [1, 1]
    assert masked.reward == kept.reward == 1.0
    assert masked.completion_ids == kept.completion_ids == [10, 9]


def test_several_segments_are_refused_unless_one_is_chosen() -> None:
    rollout = make_rollout(make_segment([1, 1, 1]), make_segment([1, 0, 0, 1], version=6))
    failure = make_row(rollout).failure
    assert failure is not None
    assert "2 segments" in failure.message
    assert "segments='longest'" in failure.hint
    assert not failure.retryable
    longest, last = make_row(rollout, "longest"), make_row(rollout, "last")
    assert (longest.completion_ids, longest.left_out_tokens) == ([10, 11, EOS], 2)
    assert (last.completion_ids, last.left_out_tokens) == ([10, 11, 12, EOS], 3)
    assert longest.policy_version == last.policy_version == 5


MASKS = st.lists(st.integers(0, 1), min_size=1, max_size=6)


@given(masks=st.lists(MASKS, min_size=1, max_size=5).filter(lambda masks: any(map(any, masks))))
def test_longest_means_most_sampled_tokens_and_the_rest_is_counted(
    masks: list[list[int]],
) -> None:
    parts = [make_segment(mask, last=100 + number) for number, mask in enumerate(masks)]
    rollout = make_rollout(*parts, finish_reason=FinishReason.LENGTH)
    row = make_row(rollout, "longest", overlong="keep")
    assert row.failure is None
    number = row.completion_ids[-1] - 100
    assert (row.completion_ids, row.env_mask) == (parts[number].response_ids, masks[number])
    sampled = [sum(mask) for mask in masks]
    assert all(sampled[number] >= count for count in sampled[:number])
    assert all(sampled[number] > count for count in sampled[number + 1 :])
    assert sum(row.env_mask) + row.left_out_tokens == sum(sampled)


@given(
    last=st.integers(0, 12),
    complete=st.none() | st.sets(st.integers(0, 12)),
    finish_reason=st.sampled_from(FinishReason),
)
def test_a_finished_rollout_is_refused_only_where_trl_would_take_it_for_cut_off(
    last: int, complete: set[int] | None, finish_reason: FinishReason
) -> None:
    rollout = make_rollout(make_segment([1, 1], last=last), finish_reason=finish_reason)
    row = row_of(rollout, eos_id=EOS, segments="refuse", overlong="keep", complete=complete)
    is_misjudged = complete is not None and last not in complete
    if finish_reason is FinishReason.FINISHED and is_misjudged:
        assert row.failure is not None
        assert "mask_truncated_completions=False" in row.failure.hint
    else:
        assert (row.failure, row.completion_ids[-1]) == (None, last)


def test_a_cut_off_rollout_leaves_the_loss_whichever_segment_is_trained_on() -> None:
    rollout = make_rollout(
        make_segment([1, 1, 1]), make_segment([1, 1], last=9), finish_reason=FinishReason.LENGTH
    )
    row = make_row(rollout, "longest")
    assert (row.env_mask, row.reward, row.finish_reason) == ([0, 0, 0], 1.0, "length")


@pytest.mark.parametrize(
    ("rollout", "message"),
    [
        (make_rollout(make_segment([0, 0])), "no sampled token"),
        (make_rollout(of_kind("auxiliary", is_trained=False)), "no sampled token"),
        (make_rollout(reward=None), "no reward"),
    ],
)
def test_broken_trajectories_are_failures(rollout: Rollout, message: str) -> None:
    failure = make_row(rollout).failure
    assert failure is not None
    assert message in failure.message


@given(
    masks=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=8), min_size=1, max_size=8),
    finish_reason=st.sampled_from(FinishReason),
    state=st.sampled_from([RolloutState.DONE, RolloutState.FAILED, RolloutState.CANCELLED]),
)
def test_columns_always_fit_what_trl_needs(
    masks: list[list[int]], finish_reason: FinishReason, state: RolloutState
) -> None:
    error = ErrorInfo(kind="E", blame=Blame.AGENT, message="m")
    rollouts = [
        make_rollout(
            make_segment(mask),
            finish_reason=finish_reason,
            state=state,
            error=error if state is RolloutState.FAILED else None,
        )
        for mask in masks
    ]
    table = columns([make_row(rollout) for rollout in rollouts])
    assert {len(column) for column in table.values()} == {len(masks)}
    for prompt, ids, logprobs, mask, reward in zip(
        table["prompt_ids"],
        table["completion_ids"],
        table["logprobs"],
        table["env_mask"],
        table["prorl_reward"],
        strict=True,
    ):
        assert prompt
        assert ids
        assert len(ids) == len(logprobs) == len(mask)
        assert reward is not None or mask == [0]


def test_metrics_count_failures_by_blame() -> None:
    error = ErrorInfo(kind="E", blame=Blame.BACKEND, message="m")
    failed = make_rollout(state=RolloutState.FAILED, error=error, reward=None)
    overlong = make_rollout(finish_reason=FinishReason.MAX_TURNS)
    rows = [make_row(one) for one in (failed, overlong, make_rollout(), make_rollout())]
    values = metrics(rows, newest_version=6)
    assert values["prorl/failed"] == values["prorl/failed/backend"] == 0.25
    assert values["prorl/failed/agent"] == 0
    assert values["prorl/overlong"] == 0.25
    assert (values["prorl/turns"], values["prorl/rollout_s"]) == (2, 6)
    assert values["prorl/policy_lag"] == 1
    assert values["prorl/reward"] == 1.0
    assert "prorl/turns" not in metrics(rows[:1], newest_version=6)


def test_tokens_left_out_are_a_mean_over_rollouts_that_did_not_fail() -> None:
    failed = make_rollout(state=RolloutState.CANCELLED, reward=None)
    compacted = make_rollout(make_segment([1, 1, 1]), make_segment([1, 0, 1]))
    rows = [make_row(one, "longest") for one in (failed, compacted, make_rollout())]
    assert row_metrics(rows, newest_version=5)["prorl/left_out_tokens"] == 1
    assert "prorl/left_out_tokens" not in row_metrics(rows[:1], newest_version=5)


def test_the_summary_counts_reasons_and_says_what_to_do() -> None:
    error = ErrorInfo(kind="BackendError", blame=Blame.BACKEND, message="gone", hint="restart it")
    failed = make_rollout(state=RolloutState.FAILED, error=error, reward=None)
    rows = [make_row(failed), make_row(failed), make_row(make_rollout())]
    summary = failure_summary([row.failure for row in rows])
    assert summary == (
        "2 of 3 rollouts failed\n  2 x BackendError (blame: backend): gone\n      restart it"
    )


def test_segments_that_are_not_trained_on_are_not_there_for_the_trainer() -> None:
    title = of_kind("auxiliary", is_trained=False, mask=[1] * 9)
    own = of_kind("main", is_trained=True)
    row = make_row(make_rollout(title, own))
    assert row.failure is None
    assert row.completion_ids == own.response_ids
    assert row.left_out_tokens == 9
