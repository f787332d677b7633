"""The `agent_loop_manager_class`, to which VeRL's trainer gives its prompts.

One for each trainer, in the trainer's process. Everything that waits is in an event loop of its
own, in a thread, so that the trainer's is not blocked.
"""

import asyncio
import atexit
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from prorl_service.client import RolloutClient
from prorl_service.client.background_loop import BackgroundLoop
from prorl_service.client.metrics import outcome_of
from prorl_service.client.policy import HeldPolicy
from prorl_service.client.saved import SavedStep
from prorl_service.client.trainable import checked
from prorl_service.schemas import Rollout
from prorl_verl import checks, contract, store, tripwire
from prorl_verl.connection import Connection, hold_policy
from prorl_verl.data import check_data
from prorl_verl.dynamic import Drawn, DynamicSampling
from prorl_verl.measurements import Measurements, add_to_log
from prorl_verl.pictures import Vision
from prorl_verl.runs import GroupRuns
from prorl_verl.saving import Saving, step_of
from prorl_verl.scoring import ComputeScore, Scored, Scoring, compute_score_of
from prorl_verl.settings import (
    Settings,
    draws,
    draws_per_step,
    group_size,
    is_on_policy,
    plain,
    sampler_spec,
    sampling_of,
    settings_of,
)
from prorl_verl.store import Prompt
from prorl_verl.tasks import prompts_of
from prorl_verl.teacher import Teacher
from prorl_verl.tripwire import Tripwire

logger = logging.getLogger(__name__)

_current: "ProRLAgentLoopManager | None" = None


def current() -> "ProRLAgentLoopManager":
    """Returns the manager. VeRL makes the sampler first, and does not connect the two."""
    if _current is None:
        raise RuntimeError(
            "prorl_verl's sampler needs its manager: train with `rollout=prorl`, or "
            "set trainer.v1.sampler.custom_sampler.name=null"
        )
    return _current


class ProRLAgentLoopManager:
    @classmethod
    def create(cls, config: Any, llm_client: Any, **others: Any) -> Any:
        """Called by VeRL. `others`: mostly for VeRL's own manager."""
        global _current
        contract.check()
        sections = plain(config)
        settings = settings_of(sections)
        checks.check_configuration(sections, settings)
        policy = hold_policy(sections, settings)
        for ignored in checks.ignored(sections):
            logger.warning("%s", ignored)
        tripwire.install(Tripwire(sections, settings))
        workers = others.get("reward_loop_worker_handles")
        new_compute_score = partial(compute_score_of, config, workers)
        teacher = Teacher.of(config, others.get("teacher_client"))
        _current = cls(sections, settings, llm_client, policy, new_compute_score, teacher)
        return _current

    def __init__(
        self,
        config: dict[str, Any],
        settings: Settings,
        llm_client: Any,
        policy: HeldPolicy,
        new_compute_score: Callable[[], ComputeScore | None],
        teacher: Teacher | None = None,
    ) -> None:
        """`new_compute_score` is called in the event loop of this manager."""
        self._config, self._settings = config, settings
        self._is_on_policy = is_on_policy(config, settings)
        background = BackgroundLoop()
        self._loop, self._do = background.loop, background.do
        self._policy = policy
        self._connection = self._do(_connect(config, settings, llm_client, policy.key))
        check_data(config, settings)
        vision = self._connection.vision
        self._scoring = self._do(_scoring(config, settings, new_compute_score, teacher, vision))
        self._saving = None if settings.save is None else Saving(settings.save)
        self._measurements = Measurements()
        add_to_log(self._measurements.take, self._report)
        self._runs = GroupRuns(
            self._connection.client,
            score=self._score,
            deadline_s=settings.deadline_s,
        )
        self._dynamic = self._dynamic_sampling()
        store.before_close(self._end)
        atexit.register(self._end)  # where nothing closes the store

    def _dynamic_sampling(self) -> DynamicSampling | None:
        if not draws(self._config):
            return None
        settings = self._settings
        return DynamicSampling(
            self._connection.run_id,
            sampler_spec(self._config, settings, self._mode),
            partial(RolloutClient, **settings.client_options(training=self._policy.key)),
            deadline_s=settings.deadline_s,
            draws_per_step=draws_per_step(self._config),
        )

    @property
    def _mode(self) -> Any:
        return self._config["trainer"]["v1"]["trainer_mode"]

    def generate_sequences(self, prompts: Any) -> None:
        """Takes `prompts`, a TensorDict with one row for each group, and returns immediately.

        Raises `ValueError` for a row that is not a task, `AllGroupsFail` when there is no hope, and
        `PolicyTaken` once another training has the policy.
        """
        self._policy.check()
        self._runs.check_hope()
        self._loop.call_soon_threadsafe(self._connection.engines.open)
        validate = "validate" in prompts and bool(prompts["validate"])
        batch = prompts_of(
            prompts,
            self._settings,
            run_id=self._connection.run_id,
            sampling=sampling_of(self._config, self._settings, validate=validate),
            n=group_size(self._config, validate=validate),
            partition="val" if validate else "train",
        )
        if self._dynamic is not None and not validate:
            self._dynamic.put(batch)
        else:
            asyncio.run_coroutine_threadsafe(self._run(batch), self._loop)

    async def _run(self, prompts: Sequence[Prompt]) -> None:
        if self._saving is None:
            await self._runs.run(prompts)
        else:
            await self._saving.during(prompts, self._runs.run(prompts))

    def draw(
        self, global_steps: int, target: int, refill: Callable[[int], object]
    ) -> tuple[list[tuple[Prompt, list[Scored]]], list[Prompt], dict[str, float]]:
        """Returns the scored groups of a step, prompts that taught nothing, and metrics.

        In synchronous training sampling has stopped when it returns: VeRL then puts its engines to
        sleep.
        """
        assert self._dynamic is not None
        self._policy.check()
        drawn, dropped = self._dynamic.draw(target, version=global_steps - 1, refill=refill)
        if self._mode == "sync":
            self._do(self._connection.engines.close())
        scored = self._do(self._scored(drawn, SavedStep(global_steps)))
        return scored, dropped, self._dynamic.metrics()

    async def _score(
        self, prompt: Prompt, rollouts: Sequence[Rollout], step: SavedStep | None = None
    ) -> list[Scored]:
        """Scores and saves rollouts, and logs and measures failures, whichever way groups come.

        `step`: the one that trains on them; None: that in which the prompt was given out.
        """
        engine, engines = self._connection.url.split("://", 1)[1], self._connection.engines
        version = engines.version
        versions = {version} if self._is_on_policy else engines.versions
        own = [checked(one, engine=engine, versions=versions) for one in rollouts]
        scored = await self._scoring.of(prompt, own)
        rollouts = [rollout for rollout, _ in scored]
        store.warn_of_failures(prompt, rollouts)
        if self._saving is not None:
            await self._saving.add(step or step_of(prompt), rollouts)
        self._measurements.add(prompt.partition, map(outcome_of, rollouts), newest_version=version)
        return scored

    async def _scored(self, drawn: Drawn, step: SavedStep) -> list[tuple[Prompt, list[Scored]]]:
        scored = await asyncio.gather(*(self._score(*group, step) for group in drawn))
        if self._saving is not None:
            await self._saving.add_tasks(prompt for prompt, _ in drawn)
            await self._saving.finish(step)
        return [(prompt, one) for (prompt, _), one in zip(drawn, scored, strict=True)]

    def _report(self, step: int, metrics: dict[str, Any]) -> None:
        """Reports a step of VeRL's, which trains on what the weights of the step before sampled."""
        self._policy.report(step, metrics, max(0, step - 1))

    def _end(self) -> None:
        """Makes the service stop its work for this run, once."""
        atexit.unregister(self._end)
        sampler_id = self._dynamic.sampler_id if self._dynamic is not None else None
        self._connection.give_up(self._runs.rollout_ids(), sampler_id)
        self._policy.release()
        if self._saving is not None:
            self._saving.close()


async def _scoring(
    config: dict[str, Any],
    settings: Settings,
    new_compute_score: Callable[[], ComputeScore | None],
    teacher: Teacher | None,
    vision: Vision | None,
) -> Scoring:
    return Scoring(
        overlong=settings.overlong,
        compute_score=new_compute_score(),
        takes_segments=config["algorithm"]["adv_estimator"] == "grpo",
        teacher=teacher,
        vision=vision,
    )


async def _connect(
    config: dict[str, Any], settings: Settings, llm_client: Any, training: str
) -> Connection:
    return await Connection(config, settings, llm_client, training).start()
