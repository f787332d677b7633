"""Rollouts of the service for a training loop on Tinker's API: `step` gives `Datum`s and metrics.

Blocking, for the thread that trains; the gateway has an event loop in another thread.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Self

import tinker
from tinker import types

from prorl_service.client import off_policy
from prorl_service.client.background_loop import BackgroundLoop, in_thread
from prorl_service.client.gateway_lease import GatewayLease
from prorl_service.client.step_groups import StepGroups
from prorl_service.client.trainable import Overlong
from prorl_service.client.trainers_service import TrainersService
from prorl_service.errors import InvalidRequest
from prorl_service.schemas import Limits, Rollout, Sampling, Task
from prorl_service.schemas.sampling import SamplerSpec
from prorl_tinker.convert import Sample, samples_of
from prorl_tinker.engine import SamplingEngine

logger = logging.getLogger(__name__)

CAUSES = (
    *(off_policy.ANOTHER_RUN, off_policy.ROWS_CHANGED, off_policy.CUT_OFF),
    *(off_policy.OTHER_FORWARD, off_policy.QUANTISED),
)


@dataclass(frozen=True, slots=True)
class StepData:
    """What a step trains on. `groups`: all rollouts, failed ones with their `error`."""

    data: list[types.Datum]
    metrics: dict[str, float]
    groups: list[list[Rollout]]


class TinkerRollouts:
    """Use it as a context manager.

    `url`, `token`: of the rollout service, as for `RolloutClient`.
    `training_client`: its present weights sample each step's rollouts.
    `tasks`, `seed`: see `StepGroups`; a sequence is checked at the start.
    `groups_per_step`, `group_size`: tasks of a step, and rollouts of each.
    `dynamic_sampling`: train on informative groups only; a `SamplerSpec` says how (DAPO).
    `overlong`: see `client.trainable.Overlong`.
    `deadline_s`: of one step; rollouts that have not ended then are cancelled and count as failed.
    The Tinker server is lost after as long a silence.
    `max_model_len`: longest sequence that the server takes.
    `tokenizer`: where the service finds the model's; None: where the server found it.
    `training_id`: that of an earlier process, if this one continues its training.
    `take_over`: ends another training that holds the service's policy, which refuses this one.
    """

    def __init__(
        self,
        url: str,
        training_client: tinker.TrainingClient,
        tasks: Iterable[Task],
        *,
        groups_per_step: int = 8,
        group_size: int = 8,
        limits: Limits = Limits(),
        sampling: Sampling = Sampling(),
        dynamic_sampling: bool | SamplerSpec = False,
        overlong: Overlong = "mask",
        deadline_s: float = 1800,
        seed: int = 0,
        token: str | None = None,
        max_model_len: int = 32768,
        tokenizer: str | None = None,
        training_id: str | None = None,
        take_over: bool = False,
    ) -> None:
        """Raises `InvalidRequest` for options with which training would go wrong."""
        if sampling.temperature != 1:
            raise InvalidRequest.of_field("sampling.temperature", "Tinker computes logprobs at 1")
        if group_size < 2:
            raise InvalidRequest.of_field("group_size", "one rollout has nothing to compare with")
        self._service = TrainersService(
            url, token=token, deadline_s=deadline_s, take_over=take_over
        )
        self._training_client, self._overlong = training_client, overlong
        self._training_id, self._tokenizer = training_id, tokenizer
        self._max_model_len = max_model_len
        self._groups = StepGroups(
            self._service,
            tasks,
            seed=seed,
            groups_per_step=groups_per_step,
            spec=SamplerSpec() if dynamic_sampling is True else dynamic_sampling or None,
            n=group_size,
            sampling=sampling,
            limits=limits,
        )
        self._watch = off_policy.OffPolicyWatch(CAUSES)
        self._lease: GatewayLease | None = None
        self._number = 0
        self._step = StepData([], {}, [])
        self._samples: dict[int, Sample] = {}
        """Samples of the step, by the identity of their datum."""
        self._is_judged = True
        """True once the logprobs of the step were compared."""

    def __enter__(self) -> Self:
        """Raises `PolicyTaken`, `BadRows`, `InvalidRequest`, `ServiceCallError`, the SDK's own."""
        self._service.claim(self._training_id)
        self._background = BackgroundLoop()
        try:
            self._background.do(self._start())
            self._groups.check()
        except BaseException:
            self.__exit__()
            raise
        logger.info("watch the rollouts at %s", self._service.url)
        return self

    def __exit__(self, *_: object) -> None:
        self._groups.end()
        if self._lease is not None:
            self._lease.end_renewal()
            self._service.tell(self._lease.remove)
            self._background.do(self._lease.stop())
        self._service.release()
        self._background.stop()

    async def _start(self) -> None:
        """Offers the training client's weights to the service."""
        about = (await self._training_client.get_info_async()).model_data
        tokenizer = self._tokenizer or about.tokenizer_id or about.model_name
        self._engine = SamplingEngine(self._training_client, deadline_s=self._service.deadline_s)
        lease = GatewayLease(
            self._engine,
            self._service.client_options(),
            tokenizer=tokenizer,
            model=about.model_name or tokenizer,
            max_model_len=self._max_model_len,
            logprobs_mode="processed_logprobs",  # at temperature 1, raw ones are the same
        )
        self._engine.has_news = lease.has_news
        self._watching = asyncio.create_task(self._engine.watch())
        await self._engine.open()
        self._lease = await lease.start()
        own = await in_thread(self._training_client.get_tokenizer)
        if problem := await lease.tokenizer_problem(own):
            raise InvalidRequest.of_field("tokenizer", problem)

    @property
    def training_id(self) -> str | None:
        """Id to give to a later process that continues this training."""
        return self._service.training_id

    def push_weights(self) -> None:
        """Has the service sample with the training client's present weights until the next step, to
        evaluate them there. Raises `TinkerServerLost`, and what the SDK raises."""
        self._background.do(self._engine.open())

    def step(self) -> StepData:
        """Returns data that the present weights have sampled. Raises `RolloutsFailed`,
        `AllGroupsFail`, `PolicyTaken`, and like `push_weights`."""
        if not self._is_judged:
            logger.warning("step %d was not compared: call `check(data, future)`", self._number)
        self._service.claim()
        self.push_weights()
        self._number += 1
        version = self._engine.version
        assert self._lease is not None, "enter the context first"
        groups = self._groups.run(engine=self._lease.backend_id, version=version)
        self._background.do(self._engine.close())
        samples = [one for group in groups for one in samples_of(group, self._overlong)]
        self._samples = {id(one.datum): one for one in samples}
        self._is_judged = not samples
        if not samples:
            text = "step %d has nothing to learn from: all failed, was cut off, or has one reward"
            logger.warning(text, self._number)
        values = self._groups.metrics(groups, overlong=self._overlong, version=version)
        values["prorl/data"] = len(samples)
        self._step = StepData([one.datum for one in samples], values, groups)
        return self._step

    def check(
        self, data: Sequence[types.Datum], future: tinker.APIFuture[types.ForwardBackwardOutput]
    ) -> dict[str, float]:
        """Waits for `forward_backward` of a step's data, or of a part of them, and compares the
        logprobs with those that were sampled. Returns the step's metrics, which are on the
        service's page, too. Raises `PolicyDiffers`, `TinkerServerLost`, and what the SDK raises.

        Only the first part of a step is judged: others may follow an update.
        """
        output = self._background.do(self._engine.until(future.result_async()))
        pairs = zip(data, output.loss_fn_outputs, strict=True)
        gaps = [gap for pair in pairs for gap in self._gaps(*pair)]
        values: dict[str, float] = self._step.metrics | output.metrics
        if gaps and not self._is_judged:
            mean, largest = fmean(gaps), max(gaps)
            values |= {"prorl/off_policy": mean, "prorl/off_policy_max": largest}
            if warning := self._watch.add(mean, largest, step=self._number):
                logger.warning("%s", warning)
        self._is_judged = True
        self._service.report(self._number, values, self._engine.version)
        return values

    def _gaps(self, datum: types.Datum, output: types.LossFnOutput) -> list[float]:
        """Returns the differences of a datum whose tokens are of the newest weights alone. Raises
        `PolicyDiffers`."""
        sample = self._samples.get(id(datum))
        if sample is None:
            raise off_policy.PolicyDiffers(
                f"step {self._number}: the loss takes a datum that is none of the step's",
                hint=off_policy.ROWS_CHANGED.text,
            )
        is_newest = sample.versions == {self._engine.version}
        return sample.gaps(output["logprobs"].data) if is_newest else []
