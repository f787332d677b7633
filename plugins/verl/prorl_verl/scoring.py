"""The rows of a rollout with their reward: the service's, or that of VeRL's reward loop.

VeRL's loop is used only if its configuration wants more than the service's reward: the user's
reward function, in VeRL's own reward workers, or another reward manager (such as `dapo` with its
overlong buffer), in this process, which then works on the service's reward.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from omegaconf import open_dict
from verl import DataProto
from verl.experimental.reward_loop.reward_loop import RewardLoopWorker

from prorl_service.client.trainable import SoftPunishment, refuse_pictures
from prorl_service.schemas import Blame, ErrorInfo, Rollout
from prorl_verl.pictures import Vision
from prorl_verl.rows import Row, rows_of
from prorl_verl.store import Prompt
from prorl_verl.teacher import Teacher
from prorl_verl.tensors import extra_fields, fields_of

EXTRA_INFO = "prorl"
"""Key of the service's report on the rollout in `extra_info`."""

REWARD_FAILED = ErrorInfo(
    kind="RewardFunctionFailed",
    blame=Blame.EVALUATOR,
    message="",
    hint="correct reward.custom_reward_function or reward.reward_manager",
)
TEACHER_FAILED = ErrorInfo(
    kind="TeacherFailed",
    blame=Blame.BACKEND,
    message="",
    hint="look at distillation.teacher_models: the teacher reads prompt and response together",
)

ComputeScore = Callable[[DataProto], Awaitable[dict[str, Any]]]
Scored = tuple[Rollout, list[Row]]


def service_reward(
    data_source: Any, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any], **_: Any
) -> float:
    """Returns the service's reward, for a configuration without a reward function."""
    return float(extra_info[EXTRA_INFO]["reward"])


class Scoring:
    """Scorer of rollouts. Use it in one event loop."""

    def __init__(
        self,
        *,
        overlong: SoftPunishment | None,
        compute_score: ComputeScore | None,
        takes_segments: bool,
        teacher: Teacher | None = None,
        vision: Vision | None = None,
    ) -> None:
        """`compute_score`: None keeps the service's reward. `takes_segments`: a rollout may have
        more than one row. `teacher` of rows to train on. `vision`: that of a model that sees."""
        self._overlong = overlong
        self._compute_score = compute_score
        self._takes_segments = takes_segments
        self._teacher = teacher
        self._vision = vision

    async def of(self, prompt: Prompt, rollouts: Sequence[Rollout]) -> list[Scored]:
        """Returns each rollout with its rows; one that cannot be scored has an error instead."""
        return await asyncio.gather(*(self._one(prompt, rollout) for rollout in rollouts))

    async def _one(self, prompt: Prompt, rollout: Rollout) -> Scored:
        max_tokens = prompt.group.limits.max_response_tokens
        assert max_tokens is not None
        rows = rows_of(rollout, max_response_tokens=max_tokens, overlong=self._overlong)
        rows = await asyncio.to_thread(self._shown, rollout, rows)
        if len(rows) > 1 and not self._takes_segments:
            return rollout.model_copy(update={"error": _too_many(len(rows))}), []
        try:
            if rows and self._compute_score is not None:
                result = await self._compute_score(data_of(rows[-1], rollout, prompt.columns))
                rows = [_scored(row, rollout, result) for row in rows]
        except Exception as error:
            return _failed(rollout, error, REWARD_FAILED), []
        try:
            return rollout, await self._taught(prompt, rows)
        except Exception as error:
            return _failed(rollout, error, TEACHER_FAILED), []

    async def _taught(self, prompt: Prompt, rows: list[Row]) -> list[Row]:
        if self._teacher is None or prompt.partition == "val":
            return rows
        return await asyncio.gather(*(self._teacher.taught(row, prompt.columns) for row in rows))

    def _shown(self, rollout: Rollout, rows: list[Row]) -> list[Row]:
        """Returns the rows with their pictures. Raises `InvalidRequest` if the model sees none."""
        if self._vision is None or not rows:
            refuse_pictures(rollout)
            return rows
        assert rollout.trajectory is not None
        contents = rollout.trajectory.contents()
        shown = (self._vision.shown(row, contents) for row in rows)
        return [row for row in shown if row is not None]


def _scored(row: Row, rollout: Rollout, result: Mapping[str, Any]) -> Row:
    """Applies a score, which may have its own `acc`; `prorl_reward` is the service's reward."""
    kept = {name: value for name, value in row.metrics.items() if name != "acc"}
    theirs = {name: _plain(value) for name, value in result.get("reward_extra_info", {}).items()}
    metrics = {**kept, "prorl_reward": rollout.reward, **theirs}
    reward = float(result["reward_score"]) + row.metrics["overlong_penalty"]
    if not np.isfinite(reward):
        raise ValueError(f"the reward is {reward}")
    return replace(row, reward=reward, metrics=metrics)


def _plain(value: Any) -> Any:
    """Returns a plain number; some reward managers return tensors."""
    return value.item() if isinstance(value, torch.Tensor | np.generic) else value


def data_of(row: Row, rollout: Rollout, columns: Mapping[str, Any]) -> DataProto:
    """Returns a batch of one, as VeRL's agent loops give it to reward managers, which only look at
    the last segment."""
    fields = fields_of(row, {})
    names = ("prompts", "responses", "input_ids", "position_ids")
    tensors = {name: fields[name][None] for name in names}
    tensors["attention_mask"] = torch.ones_like(tensors["input_ids"])
    values = {
        "data_source": "prorl",
        "reward_model": {"ground_truth": None},
        **columns,
        "extra_info": {**(columns.get("extra_info") or {}), EXTRA_INFO: _told(rollout)},
        "__num_turns__": row.turns,
        "tool_extra_fields": extra_fields(row),
    }
    return DataProto.from_dict(
        tensors, non_tensors={name: _alone(value) for name, value in values.items()}
    )


def _told(rollout: Rollout) -> dict[str, Any]:
    assert rollout.trajectory is not None
    return {
        "reward": rollout.reward,
        "reward_components": rollout.reward_components,
        "turn_rewards": [turn.reward for turn in rollout.trajectory.turns],
        "finish_reason": rollout.trajectory.finish_reason.value,
        "task_id": rollout.task_id,
        "agent": rollout.agent,
    }


def _alone(value: Any) -> Any:
    """Returns an array of objects with one item, whatever it is."""
    array = np.empty(1, dtype=object)
    array[0] = value
    return array


def _too_many(count: int) -> ErrorInfo:
    return ErrorInfo(
        kind="UnusableTrajectory",
        blame=Blame.AGENT,
        message=f"the trajectory has {count} segments, algorithm.adv_estimator takes one",
        hint="use an agent with an append-only history, or algorithm.adv_estimator=grpo",
    )


def _failed(rollout: Rollout, error: Exception, reason: ErrorInfo) -> Rollout:
    cause = getattr(error, "cause", None) or error  # Ray's errors hold the worker's
    message = f"{type(cause).__name__}: {cause}"
    return rollout.model_copy(update={"error": reason.model_copy(update={"message": message})})


async def _ask_any(workers: Sequence[Any], data: DataProto) -> Any:
    return await random.choice(workers).compute_score.remote(data)


def compute_score_of(config: Any, workers: Sequence[Any] | None) -> ComputeScore | None:
    """Returns what the configuration wants of VeRL's reward loop, whose Ray actors are `workers`.

    Call it in the event loop that uses the result: reward managers keep theirs.
    """
    reward = config.reward
    if reward.custom_reward_function.path:
        return partial(_ask_any, list(workers or []))
    if (reward.reward_manager.source, reward.reward_manager.name) == ("register", "naive"):
        return None
    own = deepcopy(config)
    with open_dict(own):
        own.reward.custom_reward_function = {
            "path": f"pkg://{__name__}",
            "name": service_reward.__name__,
        }
    return RewardLoopWorker(own).compute_score  # type: ignore[no-any-return]
