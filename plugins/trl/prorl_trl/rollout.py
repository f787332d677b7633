"""`ProRLRollout`: the `rollout_func` of a GRPOTrainer whose rollouts are run by the service.

Each call pushes the weights if they have changed, gathers the prompts of all processes, has one
conversation with the service on the main process, and gives every process its rows, or the error.
"""

import logging
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal

from accelerate.utils import gather_object
from pydantic import PositiveFloat
from tqdm.auto import tqdm

from prorl_service.client import RolloutClient, ServiceCallError, Wire
from prorl_service.client.sampling import CandidateQueue, StepDraws
from prorl_service.client.trainable import outage_of
from prorl_service.errors import ProRLError
from prorl_service.schemas import Group, Limits, Rollout, Sampling
from prorl_service.schemas.sampling import DrawSpec, DrawState, SamplerSpec, SamplerStatus
from prorl_trl import checks, completions, convert
from prorl_trl.conversation import ServiceForgot, restarts_noticed, run_groups
from prorl_trl.convert import Overlong, Row, Segments
from prorl_trl.correction import correct_sampling
from prorl_trl.dynamic import TOO_FEW, AfterEvaluation, AtEnd, prompts_without_end
from prorl_trl.options import checked
from prorl_trl.ownership import TrainersPolicy
from prorl_trl.processes import on_main
from prorl_trl.pushes import Pushes
from prorl_trl.saved import Replay, Saver, step_of
from prorl_trl.scorable import RewardTable
from prorl_trl.settings import sampling_of
from prorl_trl.taken import TakenRows

logger = logging.getLogger(__name__)

FIRST_CONTACT_S = 30.0
"""Longest wait for the service's first answer when training starts."""
RETRY_DELAY_S = 5.0
MAX_LOST_CALLS = 3
"""Maximum consecutive calls, each retried to its deadline, without a usable rollout."""


class RolloutsFailed(ProRLError):
    """No rollout of a call can be trained on, or one failed under `on_failure="raise"`."""


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
        self._url, self._token, self._wire = url, token, wire
        self._agent, self._limits, self._sampling = agent, limits, sampling
        self._deadline_s = deadline_s
        self._on_failure, self._overlong, self._segments = on_failure, overlong, segments
        self._weights, self._importance_sampling = weights, importance_sampling
        self._observe = observe
        self._save_to = None if save is None else Path(save)
        self._replay_from = None if replay is None else Path(replay)
        if save is not None and self._save_to == self._replay_from:
            raise ValueError(f"save={str(save)!r} would replace what replay reads: name another")
        self._saver: Saver | None = None
        self._replay: Replay | None = None
        self._ended: list[Rollout] = []
        """Rollouts of the last attempt at a call."""
        self._sampler_spec = SamplerSpec() if dynamic_sampling is True else dynamic_sampling or None
        self._is_dynamic = self._sampler_spec is not None
        self._dynamic: StepDraws | None = None
        self._run_id = uuid.uuid4().hex[:12]
        self._calls = 0
        self._lost_calls = 0
        self._shortage = TOO_FEW
        self._inflight: tuple[list[Group], dict[str, Rollout]] | None = None
        self._trainer: Any = None
        self._policy = TrainersPolicy(url, token=token, take_over=take_over)
        self._pushes: Pushes
        """Pushes of the trainer's policy, from first contact on."""
        self._metrics: dict[str, float] = {}
        self._rows_here: list[Row] = []
        """This process' rows of the last call."""
        if replay is None:
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
        for name, value in self._metrics.items():
            log_metric(name, value)
        if self._trainer.log_completions:
            for name, values in completions.columns(self._rows_here, text=self._shows_text).items():
                log_extra(name, values)
        return prorl_reward

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        try:
            return self._completions(prompts, trainer)
        except ProRLError as error:  # the user's own frames and the trainer's are enough
            if error.hint and error.hint not in error.message:
                error.add_note(f"  {error.hint}")
            raise error.with_traceback(None) from None

    def _completions(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        if trainer is not self._trainer:
            self._meet(trainer)
        self._reward_table.expect_rows()
        if self._replay_from is None:
            self._hold_policy()
        if self._pushes_weights:
            self._pushes.push_if_changed()
        everyones = gather_object(prompts)
        rows, self._metrics = self._roll_out_on_main(everyones)
        start = trainer.accelerator.process_index * len(prompts)
        self._rows_here = rows[start : start + len(prompts)]
        self._taken.expect(self._rows_here, self._pushes.newest)
        return convert.columns(self._rows_here)

    # --- first contact --------------------------------------------------------------------------

    def _meet(self, trainer: Any) -> None:
        sampling = sampling_of(trainer.args, self._sampling)
        checks.check_trainer(trainer, sampling)
        checks.add_ends(
            trainer, on_main(trainer.accelerator, lambda: self._greet(trainer, sampling))
        )
        if self._save_to is not None:
            trainer.add_callback(AfterEvaluation(self._end_evaluation))
        max_tokens = self._limits.max_response_tokens or trainer.max_completion_length
        limits = self._limits.model_copy(update={"max_response_tokens": max_tokens})
        self._groups_of = partial(
            convert.groups_of, agent=self._agent, sampling=sampling, limits=limits
        )
        is_left_alone = self._weights == "none" or (self._weights == "auto" and trainer.use_vllm)
        self._pushes_weights = self._replay_from is None and not is_left_alone
        self._reward_table = RewardTable(trainer)
        directory = None if self._weights in ("auto", "stream") else Path(self._weights)
        self._pushes = Pushes(trainer, self._client, directory)
        if self._importance_sampling == "auto" and not trainer.use_vllm:
            correct_sampling(trainer)
        self._taken = TakenRows(trainer, sampling, judges=self._replay_from is None)
        self._trainer = trainer
        self._shows_text = completions.shows_text(trainer, has_other_prompts=self._is_dynamic)
        if self._sampler_spec is not None:
            checks.warn_about_rewards(trainer, self.reward_funcs)
        if self._sampler_spec is not None and self._replay_from is None:
            self._dynamic = self._dynamic_sampling(self._sampler_spec)
        trainer.add_callback(AtEnd(self._end))

    def _dynamic_sampling(self, spec: SamplerSpec) -> StepDraws:
        n, numbers = self._trainer.num_generations, count()

        def group_of(prompt: Any) -> Group:
            groups = self._groups_of([prompt] * n, n=n, name=f"other-{next(numbers)}")
            self._save_tasks(groups)
            return groups[0].model_copy(update={"lease_s": None})

        step = self._trainer.state.global_step
        if step:
            logger.info(
                "training resumes at step %d: dynamic sampling takes other prompts in another "
                "order than before, and has forgotten which tasks it had deferred",
                step,
            )
        seed = self._trainer.args.seed + step
        prompts = prompts_without_end(self._trainer.train_dataset, seed)
        self._candidates = CandidateQueue(map(group_of, prompts))
        return StepDraws(self._run_id, spec, self._candidates, deadline_s=self._deadline_s)

    def _greet(self, trainer: Any, sampling: Sampling) -> list[int]:
        """Returns the tokens by which the service ends turns; none without a service."""
        checks.warn_about(trainer, sampling, self._deadline_s)
        if self._save_to is not None:
            self._saver = Saver(self._save_to, step_of(trainer))
        if self._replay_from is not None:
            self._replay = Replay(self._replay_from)
            tqdm.write(f"prorl: rollouts are replayed from {self._replay_from}", sys.stderr)
            return []
        with self._client(retry_s=FIRST_CONTACT_S) as client:
            status = client.status()
        checks.check_tokenizer(trainer._tokenizer, status)
        self._policy.claim(trainer)
        with self._client() as client:
            checks.check_data(checks.datasets_of(trainer), self._agent, client, sampling)
        tqdm.write(f"prorl: watch the rollouts at {self._url}", sys.stderr)
        return status.end_ids

    # --- weights --------------------------------------------------------------------------------

    def push_weights(self) -> None:
        """Pushes the policy, as before each call's rollouts; after training, serves the final one.

        A collective: all processes must call it. Needs at least one earlier call by the trainer.
        """
        if self._replay_from is None:
            self._hold_policy()
            self._pushes.push()

    def _hold_policy(self) -> None:
        """A collective. Another training may have had the policy before it is claimed."""
        trainer, policy = self._trainer, self._policy
        if on_main(trainer.accelerator, lambda: policy.claim(trainer)):
            self._pushes.forget()

    # --- rollouts -------------------------------------------------------------------------------

    def _roll_out_on_main(self, prompts: Sequence[Any]) -> tuple[list[Row], dict[str, float]]:
        """Gives a restarted service the weights again, which takes all processes, and continues."""
        self._inflight = None
        deadline = time.monotonic() + self._deadline_s
        accelerator = self._trainer.accelerator
        while (outcome := on_main(accelerator, lambda: self._roll_out(prompts, deadline))) is None:
            self._hold_policy()
            if self._pushes_weights:
                self._pushes.push_again()
        return outcome

    def _roll_out(
        self, prompts: Sequence[Any], deadline: float
    ) -> tuple[list[Row], dict[str, float]] | None:
        """Returns None if the service was restarted. Raises `RolloutsFailed`."""
        self._ended = []
        try:
            rows = self._rows(prompts, deadline)
        except ServiceForgot:
            self._ended = []
            self._wait_for_restart(deadline)
            return None
        finally:
            if self._saver is not None and self._ended:
                self._saver.add(step_of(self._trainer), self._ended)
        self._count_lost_calls(rows)
        values = self._metrics_of(rows)
        return convert.with_one_token(rows) if checks.DIVIDES_BY_MASK else rows, values

    def _rows(self, prompts: Sequence[Any], deadline: float) -> list[Row]:
        """Retries while all rollouts fail for a temporary reason, such as an engine that is down.

        Training steps without rollouts would move the learning rate schedule, and with it the
        policy. Raises `RolloutsFailed` and `ServiceForgot`.
        """
        while True:
            rows = self._attempt(prompts, deadline)
            failures = [row.failure for row in rows if row.failure is not None]
            if not failures:
                return rows
            summary = convert.failure_summary(rows)
            can_pass = any(failure.retryable for failure in failures)
            is_lost = len(failures) == len(rows)
            if self._on_failure == "raise" or (is_lost and not can_pass):
                raise RolloutsFailed(summary)
            logger.warning(summary)
            is_over = self._replay is not None or time.monotonic() + RETRY_DELAY_S > deadline
            if not is_lost or is_over:
                return rows
            time.sleep(RETRY_DELAY_S)

    def _metrics_of(self, rows: Sequence[Row]) -> dict[str, float]:
        values = convert.row_metrics(rows, self._pushes.newest)
        if self._dynamic is not None and self._trainer.model.training:
            values |= self._dynamic.metrics()
        return values

    def _wait_for_restart(self, deadline: float) -> None:
        forgotten = "the service no longer knows the rollouts it was given: was it restarted?"
        if time.monotonic() + RETRY_DELAY_S > deadline:
            raise RolloutsFailed(forgotten, hint="`url` must always lead to the same service")
        logger.warning("%s Resubmitting missing rollouts.", forgotten)
        time.sleep(RETRY_DELAY_S)

    def _count_lost_calls(self, rows: Sequence[Row]) -> None:
        if any(row.failure is None for row in rows):
            self._lost_calls = 0
        else:
            self._lost_calls += 1
        if self._lost_calls >= MAX_LOST_CALLS:
            raise RolloutsFailed(convert.failure_summary(rows))
        if not any(any(row.env_mask) for row in rows):
            logger.warning(
                "this step has nothing to learn from: every rollout failed or, under "
                "overlong='mask', was cut off; continuing with the next. Raise the limits of turns "
                "and tokens, or keep such rollouts with overlong='keep'"
            )

    def _attempt(self, prompts: Sequence[Any], deadline: float) -> list[Row]:
        trainer = self._trainer
        if self._inflight is None:
            self._calls += 1
            n = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
            name = f"{self._run_id}-{trainer.state.global_step}-{self._calls}"
            self._inflight = self._groups_of(prompts, n=n, name=name), {}
        groups, ended = self._inflight
        self._save_tasks(groups)
        is_dynamic = self._is_dynamic and trainer.model.training
        if self._replay is not None:
            rollouts = self._replay.next(step_of(trainer), groups, same_tasks=not is_dynamic)
        elif is_dynamic:
            rollouts = self._draw(groups, deadline)
        else:
            rollouts = run_groups(self._client, groups, ended, deadline, self._bar)
        self._inflight = None
        self._ended = rollouts
        if self._observe is not None:
            self._observe(rollouts)
        eos_id, complete = trainer._tokenizer.eos_token_id, checks.complete_ends(trainer)
        # Groups of dynamic sampling may have begun before the last push.
        versions = self._pushes.own if is_dynamic else self._pushes.current
        rows = [
            convert.row_of(
                rollout,
                eos_id=eos_id,
                segments=self._segments,
                overlong=self._overlong,
                versions=versions or None,
                complete=complete,
            )
            for rollout in rollouts
        ]
        if self._shows_text:
            rows = [completions.with_text(row, trainer._tokenizer) for row in rows]
        return rows + [convert.unused_row(eos_id, self._shortage)] * (len(prompts) - len(rows))

    def _save_tasks(self, groups: Sequence[Group]) -> None:
        if self._saver is not None:
            self._saver.add_tasks(groups)

    def _end_evaluation(self) -> None:
        if self._saver is not None:
            self._saver.end_evaluation()

    def _draw(self, groups: Sequence[Group], deadline: float) -> list[Rollout]:
        """Returns rollouts of informative groups: as many as `groups`, or those found in time."""
        assert self._dynamic is not None
        bar = self._bar("informative groups", len(groups))

        def show(status: SamplerStatus) -> None:
            bar.update(len(status.draw.groups) - bar.n if status.draw else 0)

        self._candidates.put(group.model_copy(update={"lease_s": None}) for group in groups)
        draw_id = groups[0].group_id.rpartition("-")[0]
        try:
            with self._client() as client, bar, restarts_noticed():
                left_s = max(deadline - time.monotonic(), 1.0)
                spec = DrawSpec(target=len(groups), deadline_s=left_s)
                draw, drawn = self._dynamic.draw(client, draw_id, spec, show)
                if draw.state is DrawState.OVERDUE:
                    self._shortage = outage_of(client.backends()) or TOO_FEW
        except BaseException:
            self._end_sampling()
            raise
        return [rollout for group in drawn for rollout in group]

    def _end(self) -> None:
        if self._dynamic is not None:
            self._end_sampling()
        self._policy.release()

    def _end_sampling(self) -> None:
        """Cancels groups that were carried over; another draw starts from scratch."""
        with self._client(retry_s=0) as client, suppress(ServiceCallError):
            client.delete_sampler(self._run_id)

    def _bar(self, what: str, total: int, done: int = 0) -> Any:
        is_off = self._trainer.args.disable_tqdm or None  # None: off unless it is a terminal
        return tqdm(total=total, initial=done, desc=what, leave=False, disable=is_off)

    def _client(self, retry_s: float | None = None) -> RolloutClient:
        return RolloutClient(
            self._url,
            token=self._token,
            retry_s=self._deadline_s if retry_s is None else retry_s,
            wire=self._wire,
            training=self._policy.key,
        )
