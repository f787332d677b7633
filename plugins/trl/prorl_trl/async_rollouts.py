"""AsyncGRPOTrainer on rollouts of the service. Experimental, as that trainer is.

`ProRLRolloutWorker` is its `rollout_worker`: a thread that keeps groups in flight, computes their
advantages and queues samples for the trainer. `ProRLWeightTransfer` is its `weight_transfer`: it
streams each version of the policy to the service. Both work on the main process only. Versions
count from 1, as the trainer's do, so that a sample is as stale as its oldest token.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import PositiveFloat

from prorl_service.client import RolloutClient, ServiceCallError, Wire
from prorl_service.client.failures import RETRY_DELAY_S, RolloutsFailed
from prorl_service.client.policy import HeldPolicy, kept_training_id
from prorl_service.client.trainable import Overlong, failure_summary, outage_of
from prorl_service.client.trainers_service import LEASE_S, TrainersService
from prorl_service.errors import PolicyUnclaimed, ProRLError
from prorl_service.schemas import FinishReason, Limits, Rollout, Sampling
from prorl_service.schemas.sampling import SamplerSpec
from prorl_trl import async_groups, checks
from prorl_trl.additions import StepReports
from prorl_trl.async_groups import DrawnGroups, GroupSource, InflightGroups, PromptGroups
from prorl_trl.async_samples import RowAttempt, attempt_of, group_metrics, samples_of
from prorl_trl.checks import checked
from prorl_trl.convert import GroupMaker
from prorl_trl.rollout import FIRST_CONTACT_S
from prorl_trl.settings import sampling_of
from prorl_trl.taken import GivenSamples, trainer_of, watch_losses
from prorl_trl.weights import PolicyWeights, WeightsSender, checkpoint_names, of_checkpoint

logger = logging.getLogger(__name__)

IDLE_S = 1.0
STOP_TIMEOUT_S = 5.0
MAX_LOST_GROUPS = 8
"""Maximum consecutive groups whose rollouts all failed for a permanent reason."""


class RolloutWorkerFailed(ProRLError):
    """No more rollouts come; the message says why and what to do."""


class _Stopped(Exception):
    """Training has ended."""


class _SampleBuffer(queue.Queue[Any]):
    """Queue that signals when the trainer has taken a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = threading.Event()

    def _get(self) -> Any:
        self.taken.set()
        return super()._get()


class ProRLRolloutWorker:
    """Pass it as `rollout_worker`, with a `ProRLWeightTransfer` as `weight_transfer`.

    `args`, `train_dataset`: those of the trainer; the dataset is read in its order.
    `url`, `token`, `agent`, `limits`, `sampling`, `overlong`, `wire`: as for `ProRLRollout`.
    `tokenizer`: the trainer's `processing_class`. Training with engines that have another is
    refused; None skips the comparison.
    `dynamic_sampling`: has a sampler of the service find groups that teach something.
    `deadline_s`: training ends when the service cannot be reached, or gives nothing to train on,
    for that long; the former after `AsyncGRPOConfig.heartbeat_stale_after_s`, if that is less.
    `take_over`: ends another training that holds the service's policy.
    `observe`: gets the rollouts of each group that has ended, in the worker's thread.
    """

    @checked
    def __init__(
        self,
        url: str,
        args: Any,
        train_dataset: Any,
        *,
        tokenizer: Any = None,
        token: str | None = None,
        agent: str | None = None,
        limits: Limits = Limits(),
        sampling: Sampling | None = None,
        dynamic_sampling: bool | SamplerSpec = False,
        overlong: Overlong = "mask",
        deadline_s: PositiveFloat = 1800,
        wire: Wire = "packed",
        take_over: bool = False,
        observe: Callable[[Sequence[Rollout]], None] | None = None,
    ) -> None:
        self._new_sample = checks.async_sample_type()
        self.sampling, self.given = sampling_of(args, sampling), GivenSamples()
        checks.check_async_arguments(args, self.sampling)
        max_tokens = limits.max_response_tokens or args.max_completion_length
        limits = limits.model_copy(update={"max_response_tokens": max_tokens})
        groups = GroupMaker(agent, self.sampling, limits)
        checkpoints = Path(args.output_dir)
        continues = any(checkpoints.glob("checkpoint-*"))
        self._policy = HeldPolicy(
            url,
            kept_training_id(checkpoints) if continues else None,
            token=token,
            take_over=take_over,
            kept_in=checkpoints,
        )
        self._versions = _trainings[url] = _Versions(self._policy)
        self._service = TrainersService(
            url, token=token, wire=wire, deadline_s=deadline_s, held=self._policy
        )
        self._candidates = PromptGroups(
            train_dataset,
            partial(
                groups.group, n=args.num_generations, lease_s=None if dynamic_sampling else LEASE_S
            ),
            run_id=self._service.run_id,
        )
        self._agent, self._args, self._tokenizer = agent, args, tokenizer
        self._sampler_spec = SamplerSpec() if dynamic_sampling is True else dynamic_sampling or None
        self._overlong, self._observe = overlong, observe
        self.rollout_buffer = _SampleBuffer()
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._source: GroupSource | None = None
        self._error: BaseException | None = None
        self._heard_at = self._fed_at = time.monotonic()
        self._lost = 0
        self._last_end = "no group has ended"
        checks.check_service(url, token)

    # --- what the trainer calls -----------------------------------------------------------------

    def start(self) -> None:
        """Raises `ValueError` for a worker that does not fit the trainer or the engines, and
        `BadRows`."""
        if self._args.max_inflight_tasks < 0:
            raise ValueError("give ProRLRolloutWorker the trainer's own AsyncGRPOConfig object")
        if self._tokenizer is not None:
            with self._service.client(retry_s=FIRST_CONTACT_S) as client:
                checks.check_tokenizer(self._tokenizer, client.status())
        self._versions.claim()
        with self._service.client() as client:
            data = {"train_dataset": self._candidates.dataset}
            checks.check_data(data, self._agent, client, self.sampling)
        logger.info(
            "prompts are taken from the beginning of the data set, also where training resumes; "
            "rewards are the service's: the trainer's `reward_funcs`, `tools` and "
            "`environment_factory` have no effect"
        )
        client = self._service.client()
        self._source = self._new_source(client)
        self._heard_at = self._fed_at = time.monotonic()
        context = copy_context()  # with the caller's span, which traces of rollouts are to have
        self._thread = threading.Thread(
            target=context.run,
            args=(self._run, client, self._source),
            name="prorl-rollouts",
            daemon=True,
        )
        self._thread.start()

    def update_model_version(self, model_version: int) -> None:
        self._candidates.version = model_version
        self._versions.number(model_version)

    def check_health(self, stale_after_s: float) -> None:
        """Raises `RolloutWorkerFailed`. The trainer calls it after some seconds of waiting."""
        if self._error is not None:
            cause = None if isinstance(self._error, ProRLError) else self._error
            raise RolloutWorkerFailed(_described(self._error)) from cause
        if self._thread is None:
            raise RolloutWorkerFailed(
                "the rollout worker is not running: an AsyncGRPOTrainer trains once, so make a new "
                "worker and a new trainer, and continue with `resume_from_checkpoint`"
            )
        silence_s = time.monotonic() - self._heard_at
        if silence_s > stale_after_s:
            raise RolloutWorkerFailed(
                f"nothing was heard from {self._service.url} for {silence_s:.0f} s: check that the "
                "service runs there and answers `GET /health`, or raise "
                "AsyncGRPOConfig(heartbeat_stale_after_s=...)"
            )

    def stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is None or self._source is None:
            return
        self._stopping.set()
        self.rollout_buffer.taken.set()
        if thread.is_alive():
            self._service.tell(self._source.cancel)
        thread.join(STOP_TIMEOUT_S)
        self._policy.release()
        if thread.is_alive():
            logger.info("the rollout worker still waits for an answer; continuing without it")

    # --- the thread -----------------------------------------------------------------------------

    def _run(self, client: RolloutClient, source: GroupSource) -> None:
        try:
            with client:
                while True:
                    self._work(source)
        except _Stopped:
            pass
        except BaseException as error:
            self._error = error
            logger.error("no more rollouts are made: %r", error)
        finally:
            self._service.tell(source.close)

    def _work(self, source: GroupSource) -> None:
        self.rollout_buffer.taken.clear()
        try:
            ended = source.next(self.rollout_buffer.qsize())
        except ServiceCallError as error:
            if error.error.kind != PolicyUnclaimed.__name__:
                raise
            self._policy.claim_again()  # the service was restarted and has forgotten it
            return
        self._hear()
        if ended is None:
            self.rollout_buffer.taken.wait(IDLE_S)
        else:
            self._take(*ended)

    def _hear(self, metrics: dict[str, float] | None = None) -> None:
        """Notes a sign of life from the service. Raises `_Stopped`, `RolloutsFailed`, and
        `PolicyTaken` once another training has the policy."""
        if self._stopping.is_set():
            raise _Stopped
        self._policy.check()
        if metrics:
            self.metrics_queue.put(metrics)
        self._heard_at = now = time.monotonic()
        if self.rollout_buffer.qsize():
            self._fed_at = now
        elif now - self._fed_at > (deadline_s := self._service.deadline_s):
            raise RolloutsFailed(
                f"there was nothing to train on for {deadline_s:g} s: {self._reason()}",
                hint="raise `deadline_s` if groups take longer, look at `GET /v1/status`, train on "
                "tasks of medium difficulty, or, if rollouts are cut off, raise "
                "`max_completion_length` or set `overlong='keep'`",
            )

    def _reason(self) -> str:
        """Returns an outage of the engines, or how the last group ended."""
        with self._service.client(retry_s=0) as client, suppress(ServiceCallError):
            if (outage := outage_of(client.backends())) is not None:
                return outage.message
        return self._last_end

    def _take(self, name: str, rollouts: Sequence[Rollout]) -> None:
        if self._observe is not None:
            self._observe(rollouts)
        number, version = self._candidates.number_and_version(name)
        with self._versions.pushing:
            versions = dict(self._versions.numbers) or None  # None: others send the weights
        attempts = [
            attempt_of(rollout, overlong=self._overlong, versions=versions) for rollout in rollouts
        ]
        _check_weights(attempts, version)
        self.metrics_queue.put(group_metrics(attempts, self._candidates.version))
        prompt = self._candidates.prompt(number)
        for fields in samples_of(attempts, group_id=number, prompt=prompt):
            self.given.add(fields)
            self.rollout_buffer.put(self._new_sample(**fields, enqueued_at=time.time()))
            self._fed_at = time.monotonic()
        self._count_lost(attempts)

    def _count_lost(self, attempts: Sequence[RowAttempt]) -> None:
        """Raises `RolloutsFailed` when everything fails for a permanent reason."""
        rows = [attempt.whole for attempt in attempts]
        failures = [row.failure for row in rows if row.failure is not None]
        if failures:
            self._last_end = failure_summary([row.failure for row in rows])
        else:
            cut_off = sum(row.finish_reason != FinishReason.FINISHED.value for row in rows)
            self._last_end = (
                f"the last group's rewards are {[row.reward for row in rows]}, and {cut_off} of "
                f"its {len(rows)} rollouts did not stop by themselves"
            )
        if len(failures) < len(rows):
            self._lost = 0
            return
        self._lost += 1
        logger.log(logging.WARNING if self._lost > 1 else logging.INFO, self._last_end)
        if any(failure.retryable for failure in failures):
            self._stopping.wait(RETRY_DELAY_S)
        elif self._lost >= MAX_LOST_GROUPS:
            raise RolloutsFailed(f"{self._lost} groups in a row are lost: {self._last_end}")

    # --- service --------------------------------------------------------------------------------

    def _new_source(self, client: RolloutClient) -> GroupSource:
        args = self._args
        if self._sampler_spec is None:
            return InflightGroups(client, self._candidates, max_rollouts=args.max_inflight_tasks)
        spec = async_groups.sampler_spec(
            self._sampler_spec,
            max_groups=max(1, args.max_inflight_tasks // args.num_generations),
            max_staleness=args.max_staleness,
        )
        samples_per_micro_step = args.per_device_train_batch_size * args.world_size
        return DrawnGroups(
            client,
            self._candidates,
            sampler_id=self._service.run_id,
            spec=spec,
            max_waiting=samples_per_micro_step * args.gradient_accumulation_steps,
            on_news=self._hear,
        )


def _check_weights(attempts: Sequence[RowAttempt], version: int) -> None:
    """Raises `RolloutsFailed` for weights of others, or older than the newest sent when the group
    began."""
    failures = [one.whole.failure for one in attempts if one.whole.failure is not None]
    others = [one.message for one in failures if one.kind == "OtherPolicy"]
    oldest = min((row.policy_version for one in attempts for row in one.trained), default=version)
    if oldest < version:
        others.append(f"weights {oldest} sampled a rollout begun after {version} had been sent")
    if others:
        raise RolloutsFailed(
            others[0],
            hint="give the trainer `weight_transfer=ProRLWeightTransfer(url)`, and let nothing "
            "else update these engines; if service and engines were restarted, resume from a "
            "checkpoint, and give the service a `--journal`, which keeps the weights",
        )


def _described(error: BaseException) -> str:
    message = f"no more rollouts are made: {type(error).__name__}: {error}"
    hint = getattr(error, "hint", "")
    return message if hint in message else f"{message}\n  {hint}"


class _Versions:
    """Versions of the weights of one training, which its worker and its weight transfer share."""

    def __init__(self, policy: HeldPolicy) -> None:
        self.policy = policy
        self.numbers: dict[int, int] = {}
        """The trainer's number of each version of its weights, keyed by the service's."""
        self.newest = 0
        """The service's version of the weights sent last."""
        self.pushing = threading.Lock()
        """Held during a push: engines may sample with new weights before their version is known."""

    def claim(self) -> None:
        """Raises `PolicyTaken`, `ServiceCallError`."""
        if not self.policy.is_held:
            self.policy.claim()

    def pushed(self, version: int) -> None:
        """Notes the service's version of new weights; the trainer will number them next."""
        self.numbers[version] = self.numbers.get(self.newest, 0) + 1
        self.newest = version

    def number(self, version: int) -> None:
        """Notes the trainer's number of the weights sent last; no others send any."""
        if self.newest:
            self.numbers[self.newest] = version


_trainings: dict[str, _Versions] = {}
"""Trainings of this process, keyed by the URL of the service."""


class ProRLWeightTransfer:
    """Pass it as `weight_transfer`. The main process holds one copy of the weights in CPU memory
    while it sends them, so that they can be sent again.

    `deadline_s`: how long calls to an unreachable service are retried.
    """

    @checked
    def __init__(
        self, url: str, *, token: str | None = None, deadline_s: PositiveFloat = 1800
    ) -> None:
        checks.async_sample_type()
        self._url, self._token, self._deadline_s = url, token, deadline_s
        self._reporting: Any = None
        """Trainer whose steps are reported."""

    def init_weight_transfer(self) -> None:
        """Raises `PolicyTaken`, `ServiceCallError`."""
        url, token = self._url, self._token
        self._versions = _trainings.get(url) or _Versions(HeldPolicy(url, token=token))
        held, deadline_s = self._versions.policy, self._deadline_s
        service = TrainersService(url, token=token, deadline_s=deadline_s, held=held)
        self._sender = WeightsSender(service)
        self._versions.claim()

    def pause(self) -> None:
        """Does nothing: each engine pauses while it loads, and rollouts continue afterwards."""

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        trainer, model = trainer_of(iterator), None
        tensors = {name: tensor.detach().cpu() for name, tensor in iterator}
        if trainer is None:
            weights = checkpoint_names(tensors)
        else:
            watch_losses(trainer)
            if trainer is not self._reporting:
                trainer.add_callback(StepReports(self._versions.policy))
                self._reporting = trainer
            model = trainer.accelerator.unwrap_model(trainer.model)
            weights = of_checkpoint(model, tensors)
        versions = self._versions
        versions.policy.check()
        with versions.pushing:
            versions.policy.claim_again()
            policy = PolicyWeights(weights)
            versions.pushed(self._sender.send(policy, model, after=versions.newest))

    def resume(self) -> None: ...

    def destroy(self) -> None: ...
