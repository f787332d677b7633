"""Conversion between TRL's lists and the service's types: pure, without TRL, torch or I/O.

Prompts come from TRL already repeated, one entry per completion; a group is a block of equal
consecutive ones. The rest of a task travels as a JSON string under the key "prorl" of the last
message, because TRL passes on no other dataset column. (A string, because a dataset forces all its
rows to one schema, and `data` differs from task to task.)

A rollout that cannot be trained on becomes a row without weight: one EOS token with mask 0 and no
reward. It is never replaced by a copy of a sibling and never given a made-up reward.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Literal

from pydantic import JsonValue

from prorl_service.client.datasets import ChatMessage, task_from, task_payload
from prorl_service.client.metrics import Outcome, metrics, outcome_of
from prorl_service.client.trainable import (
    Overlong,
    failure_of,
    is_cut_off,
    other_policy,
    shaped_reward,
    trained_segments,
    unusable,
)
from prorl_service.client.trainers_service import LEASE_S
from prorl_service.schemas import (
    Difficulty,
    ErrorInfo,
    FinishReason,
    Group,
    Limits,
    Rollout,
    Sampling,
    Segment,
    Task,
)

PAYLOAD_KEY = "prorl"

Segments = Literal["refuse", "longest", "last"]


def with_task(
    messages: Sequence[ChatMessage],
    *,
    task_id: str,
    agent: str | None = None,
    data: Mapping[str, Any] | None = None,
    image: str | None = None,
    difficulty: Difficulty | None = None,
    solution: JsonValue = None,
) -> list[dict[str, Any]]:
    """Returns a "prompt" entry for a dataset. `agent` None takes the one of `ProRLRollout`.

    Messages may have `pictures`, or contents in parts, as OpenAI's: all of them then travel with
    the task, and TRL gets the text alone.
    """
    shows = any(isinstance(one["content"], list) or one.get("pictures") for one in messages)
    payload = task_payload(
        task_id=task_id,
        agent=agent,
        data=data,
        image=image,
        difficulty=difficulty,
        solution=solution,
        messages=messages if shows else None,
    )
    *earlier, last = [_as_text(message) if shows else dict(message) for message in messages]
    prompt = [*earlier, {**last, PAYLOAD_KEY: payload}]
    task_of(prompt, default_agent=agent or "any")
    return prompt


def _as_text(message: ChatMessage) -> dict[str, Any]:
    content = message["content"]
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content)
    return {**message, "content": content, "pictures": None}


def task_of(prompt: Sequence[ChatMessage], *, default_agent: str | None) -> Task:
    """Raises `ValueError` when the prompt cannot be given to the service."""
    if isinstance(prompt, str):
        raise ValueError(
            "ProRLRollout needs conversational prompts (lists of messages): the service applies "
            f"the chat template, but this prompt is a string: {prompt[:60]!r}"
        )
    return task_from(
        [{key: value for key, value in one.items() if key != PAYLOAD_KEY} for one in prompt],
        prompt[-1].get(PAYLOAD_KEY),
        default_agent=default_agent,
        no_agent_hint="build the dataset with `prorl_trl.with_task(...)`, or name one for all "
        "prompts with `ProRLRollout(agent=...)`",
    )


@dataclass(frozen=True, slots=True)
class GroupMaker:
    """What all groups of a training have in common. `agent`: of prompts that name none."""

    agent: str | None
    sampling: Sampling
    limits: Limits

    def group(self, name: str, prompt: Any, n: int, *, lease_s: float | None = LEASE_S) -> Group:
        """Returns a group of `n` rollouts. Raises `ValueError`."""
        task = task_of(prompt, default_agent=self.agent)
        settings = {"sampling": self.sampling, "limits": self.limits, "lease_s": lease_s}
        return Group(group_id=name, task=task, n=n, **settings)

    def groups(self, prompts: Sequence[Any], *, n: int, name: str) -> list[Group]:
        """Returns one group per block of `n` equal prompts; block i becomes group `{name}-{i}`.
        Raises `ValueError`."""
        if len(prompts) % n:
            raise ValueError(f"{len(prompts)} prompts are not a multiple of num_generations={n}")
        groups = []
        for block, start in enumerate(range(0, len(prompts), n)):
            first, *others = prompts[start : start + n]
            if any(other != first for other in others):
                raise ValueError(
                    f"prompts {start} to {start + n - 1} must be {n} copies of one prompt but "
                    "differ: the sampler must repeat each prompt `num_generations` times"
                )
            groups.append(self.group(f"{name}-{block}", first, n))
        return groups


@dataclass(frozen=True, slots=True)
class TrlRow(Outcome):
    """One completion as TRL takes it, and how the rollout went.

    `left_out_tokens`: number of tokens sampled in other segments of the trajectory.
    `label`: rollout, task and failure, for people.
    """

    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]
    env_mask: list[int]
    left_out_tokens: int = 0
    label: str = ""
    pictures: Mapping[int, bytes] = field(default_factory=dict)
    """Pictures among the tokens, keyed by their id."""


def row_of(
    rollout: Rollout,
    *,
    eos_id: int,
    segments: Segments,
    overlong: Overlong,
    versions: Collection[int] | None = None,
    complete: Collection[int] | None = None,
    placeholder: int | None = None,
) -> TrlRow:
    """`eos_id`: the token of a row without weight.

    `segments`: "refuse" fails a rollout of more than one; "longest" trains on the one with the
    most sampled tokens, of equals the later; "last" on the one that was opened last.

    `versions`: those of the weights that tokens must be sampled with; None: any.

    `complete`: last tokens of rollouts that TRL takes for complete; None if any token may be last.

    `placeholder`: token in the place of pictures, which no policy may sample: the trainer's model
    would take it for another picture.
    """
    failure = failure_of(rollout)
    if failure is None and versions is not None:
        failure = other_policy(rollout, versions)
    if failure is None:
        assert rollout.trajectory is not None
        failure = _trajectory_failure(rollout, segments, complete)
        if failure is None and placeholder in _chosen(rollout, segments).response_ids:
            failure = unusable(
                f"the policy sampled the placeholder of pictures, token {placeholder}",
                "nothing needs to be done: trained policies hardly ever do",
            )
    if failure is not None:
        return replace(unused_row(eos_id, failure), label=_label(rollout, failure))
    assert rollout.trajectory is not None
    segment = _chosen(rollout, segments)
    is_masked = overlong == "mask" and is_cut_off(rollout.trajectory)
    outcome = replace(outcome_of(rollout), reward=shaped_reward(rollout, overlong))
    others = [one for one in rollout.trajectory.segments if one is not segment]
    return TrlRow(
        prompt_ids=segment.prompt_ids,
        completion_ids=segment.response_ids,
        logprobs=segment.logprobs,
        env_mask=[0] * len(segment.loss_mask) if is_masked else segment.loss_mask,
        left_out_tokens=sum(map(_sampled_tokens, others)),
        label=_label(rollout),
        pictures=rollout.trajectory.contents(),
        **outcome.as_fields(),
    )


def _label(rollout: Rollout, failure: ErrorInfo | None = None) -> str:
    lines = [rollout.rollout_id, f"task {rollout.task_id}"]
    if failure is not None:
        lines.append(f"failed, blame {failure.blame.value}: {failure.message}")
    return "\n".join(lines)


def _chosen(rollout: Rollout, segments: Segments) -> Segment:
    trained = trained_segments(rollout)
    if segments == "longest":
        return max(reversed(trained), key=_sampled_tokens)
    return trained[-1]


def _sampled_tokens(segment: Segment) -> int:
    return sum(segment.loss_mask)


def _trajectory_failure(
    rollout: Rollout, segments: Segments, complete: Collection[int] | None
) -> ErrorInfo | None:
    assert rollout.trajectory is not None
    trajectory, trained = rollout.trajectory, trained_segments(rollout)
    if len(trained) > 1 and segments == "refuse":
        return unusable(
            f"the trajectory has {len(trained)} segments to learn from, GRPOTrainer takes one",
            "use an agent with an append-only history, or train on the longest segment only: "
            "`ProRLRollout(segments='longest')`",
        )
    last_id = _chosen(rollout, segments).response_ids[-1]
    if (
        complete is not None
        and trajectory.finish_reason is FinishReason.FINISHED
        and last_id not in complete
    ):
        return unusable(
            f"the rollout finished, on token {last_id}, which is none of {sorted(complete)}: "
            "mask_truncated_completions=True would take it for cut off",
            "set GRPOConfig(mask_truncated_completions=False): ProRLRollout(overlong='mask') "
            "masks what was cut off, by the reason the service gives",
        )
    return None


def unused_row(eos_id: int, failure: ErrorInfo) -> TrlRow:
    """Returns a row without weight in the loss."""
    eos = [eos_id]
    return TrlRow(eos, eos, logprobs=[0.0], env_mask=[0], failure=failure)


def with_one_token(rows: Sequence[TrlRow]) -> list[TrlRow]:
    """Unmasks one token if all are masked, in a row without a reward: its advantage is 0."""
    if any(any(row.env_mask) for row in rows):
        return list(rows)
    first = rows[0]
    env_mask = [1, *first.env_mask[1:]]
    return [replace(first, env_mask=env_mask, reward=None), *rows[1:]]


def columns(rows: Sequence[TrlRow]) -> dict[str, list[Any]]:
    """Returns `rollout_func`'s result. `prorl_` columns reach every reward function as keywords."""
    tokens = ("prompt_ids", "completion_ids", "logprobs", "env_mask")
    others = ("reward", "reward_components", "turns", "finish_reason", "policy_version")
    return {
        **{name: [getattr(row, name) for row in rows] for name in tokens},
        **{f"prorl_{name}": [getattr(row, name) for row in rows] for name in others},
        "prorl_failure": [row.failure and row.failure.message for row in rows],
    }


def row_metrics(rows: Sequence[TrlRow], newest_version: int | None) -> dict[str, float]:
    """Returns metrics of rollouts, and the mean number of sampled tokens that rows leave out."""
    values = metrics(rows, newest_version)
    usable = [row for row in rows if row.failure is None]
    if usable:
        values["prorl/left_out_tokens"] = fmean(row.left_out_tokens for row in usable)
    return values
