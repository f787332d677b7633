"""`ProRLRollout`: the `rollout_func` of a GRPOTrainer whose rollouts are run by the service.

Each call pushes the weights if they have changed, gathers the prompts of all processes, has one
conversation with the service on the main process (`calls`), and gives every process its rows, or
the error.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from datasets import Dataset
from pydantic import PositiveFloat
from tqdm.auto import tqdm

from prorl_service.client import Wire
from prorl_service.client.trainable import Overlong
from prorl_service.client.trainers_service import TrainersService
from prorl_service.errors import ProRLError
from prorl_service.schemas import Group, Limits, Rollout, Sampling, Task
from prorl_service.schemas.sampling import SamplerSpec
from prorl_trl import checks, convert
from prorl_trl.additions import OnMain, StepReports, correct_sampling
from prorl_trl.calls import TrainerRollouts
from prorl_trl.checks import checked
from prorl_trl.convert import GroupMaker, Segments, with_task
from prorl_trl.draws import TrainerDraws
from prorl_trl.pictures import placeholder_of
from prorl_trl.processes import on_main
from prorl_trl.pushes import Pushes, claim
from prorl_trl.saved import SavedRun, step_of
from prorl_trl.settings import sampling_of

FIRST_CONTACT_S = 30.0
"""Longest wait for the service's first answer when training starts."""


class ProRLRollout:
    """Pass it as `rollout_func`, and its `reward_funcs` as `reward_funcs`.

    `url`: the rollout service, or the front of several.
    `token`: its bearer token; default: as for `RolloutClient`.
    `agent`: agent for prompts that name none; see `with_task`.
    `limits`: of each rollout; `max_response_tokens` None takes `GRPOConfig.max_completion_length`.
    `sampling`: None takes `GRPOConfig.temperature` and cuts nothing off.
    `deadline_s`: of one call; rollouts that have not ended then are cancelled and count as failed.
    `on_failure`: failed rollouts are left out of baseline and loss, or raise `RolloutsFailed`.
    `overlong`, `segments`: see `convert.row_of`.
    `weights`: "stream" sends them over HTTP; a directory must be shared with the engines; "none"
    leaves them alone; "auto" streams them unless TRL itself updates a vLLM server.
    `dynamic_sampling`: train on informative groups only, and try others of the training set until
    there are enough (DAPO); a `SamplerSpec` says what is informative, and more.
    `importance_sampling`: "auto" corrects for the engine's logprobs, "off" ignores them.
    `take_over`: ends another training that holds the service's policy; otherwise this one is
    refused while that lives.
    `observe`: gets every call's rollouts, failed ones too, on the main process, to log or show.
    `save`: a directory for every step's rollouts, a JSONL file each; see `client.saved`.
    `replay`: such a directory, whose rollouts are trained on again, without a service.

    Raises `ServiceCallError` if the service does not answer within 10 s, or refuses the token.
    """

    @checked
    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        agent: str | None = None,
        limits: Limits = Limits(),
        sampling: Sampling | None = None,
        deadline_s: PositiveFloat = 1800,
        on_failure: Literal["unscorable", "raise"] = "unscorable",
        overlong: Overlong = "mask",
        segments: Segments = "refuse",
        dynamic_sampling: bool | SamplerSpec = False,
        weights: str | Path = "auto",
        importance_sampling: Literal["auto", "off"] = "auto",
        wire: Wire = "packed",
        take_over: bool = False,
        observe: Callable[[Sequence[Rollout]], None] | None = None,
        save: str | Path | None = None,
        replay: str | Path | None = None,
    ) -> None:
        checks.TRL.check("prorl_trl")
        if weights not in ("auto", "stream", "none") and not Path(weights).is_absolute():
            raise ValueError(
                f"weights={str(weights)!r}: use 'auto', 'stream', 'none' or an absolute path"
            )
        self._service = TrainersService(
            url, token=token, wire=wire, deadline_s=deadline_s, take_over=take_over
        )
        self._saved = SavedRun(save, replay)
        self._agent, self._limits, self._sampling = agent, limits, sampling
        self._row_of = partial(convert.row_of, segments=segments, overlong=overlong)
        self._rollouts_of = partial(
            TrainerRollouts, raises=on_failure == "raise", observe=observe or (lambda _: None)
        )
        self._weights, self._corrects = weights, importance_sampling == "auto"
        self._sampler_spec = SamplerSpec() if dynamic_sampling is True else dynamic_sampling or None
        self._training: TrainerRollouts | None = None
        if not self._saved.is_replayed:
            checks.check_service(url, token)

    @property
    def reward_funcs(self) -> list[Callable[..., list[float | None]]]:
        return [self.prorl_reward]

    def prorl_reward(
        self,
        prorl_reward: list[float | None],
        log_metric: Callable[[str, float], None],
        log_extra: Callable[[str, list[Any]], None],
        **_: Any,
    ) -> list[float | None]:
        """Returns the service's rewards. Logs the metrics of all processes' rollouts on each, and
        what `GRPOConfig.log_completions` shows beside TRL's own columns."""
        if self._training is not None:
            self._training.log(log_metric, log_extra)
        return prorl_reward

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        try:
            if self._training is None or trainer is not self._training.trainer:
                self._training = self._meet(trainer)
            return self._training.columns(prompts)
        except ProRLError as error:  # the user's own frames and the trainer's are enough
            if error.hint and error.hint not in error.message:
                error.add_note(f"  {error.hint}")
            raise error.with_traceback(None) from None

    def push_weights(self) -> None:
        """Pushes the policy, as before each call's rollouts; after training, serves the final one.

        A collective: all processes must call it. Needs at least one earlier call by the trainer.
        """
        assert self._training is not None
        self._training.pushes.push()

    def _meet(self, trainer: Any) -> TrainerRollouts:
        """First contact."""
        saved, is_dynamic = self._saved, self._sampler_spec is not None
        sampling = sampling_of(trainer.args, self._sampling)
        checks.check_trainer(trainer, sampling)
        ends = on_main(trainer.accelerator, lambda: self._greet(trainer, sampling))
        checks.add_ends(trainer, ends)
        max_tokens = self._limits.max_response_tokens or trainer.max_completion_length
        limits = self._limits.model_copy(update={"max_response_tokens": max_tokens})
        groups = GroupMaker(self._agent, sampling, limits)
        pushes = self._new_pushes(trainer)
        if self._corrects and not trainer.use_vllm:
            correct_sampling(trainer)
        if is_dynamic:
            checks.warn_about_rewards(trainer, self.reward_funcs)
        draws = self._new_draws(trainer, groups)
        trainer.add_callback(OnMain(saved, draws, self._service))
        trainer.add_callback(StepReports(self._service))
        eos_id, complete = trainer._tokenizer.eos_token_id, checks.complete_ends(trainer)
        placeholder = placeholder_of(trainer)
        row_of = partial(self._row_of, eos_id=eos_id, complete=complete, placeholder=placeholder)
        given: dict[str, Any] = {"groups": groups, "row_of": row_of, "is_dynamic": is_dynamic}
        return self._rollouts_of(trainer, self._service, pushes, saved, draws, **given)

    def _new_draws(self, trainer: Any, groups: GroupMaker) -> TrainerDraws | None:
        if self._sampler_spec is None or self._saved.is_replayed:
            return None

        def other(name: str, prompt: Any) -> Group:
            group = groups.group(name, prompt, trainer.num_generations, lease_s=None)
            self._saved.add_tasks([group])
            return group

        return TrainerDraws(trainer, self._service, self._sampler_spec, other)

    def _greet(self, trainer: Any, sampling: Sampling) -> list[int]:
        """Returns the tokens by which the service ends turns; none without a service."""
        service = self._service
        checks.warn_about(trainer, sampling, service.deadline_s)
        self._saved.open(step_of(trainer))
        if self._saved.is_replayed:
            return []
        with service.client(retry_s=FIRST_CONTACT_S) as client:
            status = client.status()
        checks.check_tokenizer(trainer._tokenizer, status)
        claim(service, trainer)
        with service.client() as client:
            checks.check_data(checks.datasets_of(trainer), self._agent, client, sampling)
        tqdm.write(f"prorl: watch the rollouts at {service.url}", sys.stderr)
        return status.end_ids

    def _new_pushes(self, trainer: Any) -> Pushes:
        is_left_alone = self._weights == "none" or (self._weights == "auto" and trainer.use_vllm)
        return Pushes(
            trainer,
            self._service,
            None if self._weights in ("auto", "stream") else Path(self._weights),
            is_automatic=not (self._saved.is_replayed or is_left_alone),
            holds_policy=not self._saved.is_replayed,
        )


class ProRLSpec:
    """Tasks and rollouts in one object, in the style of TRL's own specs; each attribute is the
    trainer's argument of that name: `GRPOTrainer(model=..., args=...,
    train_dataset=spec.train_dataset, rollout_func=spec.rollout_func,
    reward_funcs=spec.reward_funcs)`.

    `options` are those of `ProRLRollout`. Raises `ValueError` for tasks that cannot be given to the
    service.
    """

    def __init__(
        self, url: str, tasks: Sequence[Task], eval_tasks: Sequence[Task] = (), **options: Any
    ) -> None:
        self.train_dataset = _dataset(tasks)
        self.eval_dataset = _dataset(eval_tasks) if eval_tasks else None
        self.rollout_func = ProRLRollout(url, **options)

    @property
    def reward_funcs(self) -> list[Callable[..., list[float | None]]]:
        return self.rollout_func.reward_funcs


def _dataset(tasks: Sequence[Task]) -> Dataset:
    names = ("task_id", "agent", "data", "image", "difficulty")
    return Dataset.from_list(
        [
            {
                "prompt": with_task(
                    [message.model_dump() for message in task.messages],
                    **{name: getattr(task, name) for name in names},
                )
            }
            for task in tasks
        ]
    )
