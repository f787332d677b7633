"""Checks submissions, drives rollouts through INIT, RUN and EVAL, and lets callers wait for them.

The three stages are pools of workers that overlap across rollouts. INIT works ahead of RUN, but
only as far as the bounded READY queue lets it, for a ready rollout holds a sandbox. Sandboxes of
INIT and RUN are freed when RUN ends, those of EVAL when EVAL ends. Nothing here touches HTTP.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from pydantic import ValidationError

from prorl_service.agents.base import AgentHandler, RolloutContext, Verdict
from prorl_service.agents.registry import AgentRegistry
from prorl_service.background import Background
from prorl_service.errors import (
    EvaluatorError,
    InvalidRequest,
    Overloaded,
    ServiceStopping,
    TaskError,
)
from prorl_service.inference.pool import BackendPool, ServedModel
from prorl_service.pipeline.record import Admitted, RolloutRecord
from prorl_service.pipeline.stage import StagePool
from prorl_service.pipeline.store import RolloutStore
from prorl_service.rewards.pool import ScoringPool
from prorl_service.sandbox.base import SandboxProvider
from prorl_service.schemas import (
    FieldProblem,
    FinishReason,
    Group,
    RolloutState,
    Stage,
)

EXPECTED_SANDBOXES = 256
"""How far ahead the provider of sandboxes is told what will be asked for."""


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    init_workers: int = 8
    run_workers: int = 64
    eval_workers: int = 8
    ready_rollouts: int = 8
    """Rollouts that INIT may finish ahead of RUN; each holds a sandbox."""
    max_unfinished: int = 50_000
    """Rollouts accepted and not ended; more are refused for the time being."""
    keep_bytes: int = 2**30
    """Memory for ended rollouts; beyond it the groups that ended first are forgotten."""


class Pipeline:
    def __init__(
        self,
        backends: BackendPool,
        sandboxes: SandboxProvider,
        agents: AgentRegistry,
        config: PipelineConfig = PipelineConfig(),
    ) -> None:
        self.agents = agents
        self.background = Background()
        self._backends = backends
        self._sandboxes = sandboxes
        self._scoring = ScoringPool()
        self._store = RolloutStore(keep_bytes=config.keep_bytes)
        self._max_unfinished = config.max_unfinished
        self._init = StagePool(
            Stage.INIT,
            workers=config.init_workers,
            work=self._do_init,
            hand_on=self._to_ready,
            entering=RolloutState.INIT,
            on_free=self._expect_sandboxes,
        )
        self._run = StagePool(
            Stage.RUN,
            workers=config.run_workers,
            work=self._do_run,
            hand_on=self._to_eval,
            entering=RolloutState.RUNNING,
            max_waiting=config.ready_rollouts,
        )
        self._eval = StagePool(
            Stage.EVAL,
            workers=config.eval_workers,
            work=self._do_eval,
            hand_on=self._to_done,
            entering=RolloutState.EVALUATING,
            on_free=self._expect_sandboxes,
        )
        self.stages = (self._init, self._run, self._eval)

    async def __aenter__(self) -> "Pipeline":
        for pool in self.stages:
            for number in range(pool.workers):
                self.background.start(pool.serve(), name=f"{pool.stage} worker {number}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.background.close()
        stopping = ServiceStopping("the service is stopping", hint="submit again when it is back")
        unfinished = self._store.unfinished()
        await asyncio.gather(*(record.release() for record in unfinished))
        for record in unfinished:
            record.end(RolloutState.FAILED, stopping.info())
        await self._scoring.close()

    # --- for callers ----------------------------------------------------------------------------

    async def submit(self, groups: Sequence[Group]) -> list[RolloutRecord]:
        """Queue the rollouts of all groups, or of none when any is wrong.

        A group submitted before gives its rollouts as they are. Raises `InvalidRequest` naming the
        field, `Conflict`, `Overloaded`, and `BackendUnavailable` when no model is known to check
        prompts against.
        """
        new = [(i, group) for i, group in enumerate(groups) if self._store.known(group) is None]
        admitted = await asyncio.to_thread(  # tokenising thousands of prompts takes seconds
            lambda: [self._admit(group, f"groups.{i}") for i, group in new]
        )
        # No await from here on: nothing is added unless all can be.
        known = {group.group_id: self._store.known(group) for group in groups}
        fresh = [item for item in admitted if known[item.group.group_id] is None]
        self._check_capacity(sum(item.group.n for item in fresh))
        for item in fresh:
            records = known[item.group.group_id] = self._store.add(item)
            for record in records:
                self._init.put_nowait(record)
        self._expect_sandboxes()
        return [record for records in known.values() for record in records or ()]

    def _check_capacity(self, added: int) -> None:
        unfinished = self._store.count_unfinished()
        if unfinished + added > self._max_unfinished:
            raise Overloaded(
                f"{unfinished} rollouts are unfinished, {added} more would be too many",
                hint="submit again when some have ended",
            )

    def get(self, rollout_id: str) -> RolloutRecord:
        """Raises `NotFound`."""
        return self._store.get(rollout_id)

    async def ended(self, rollout_ids: Sequence[str]) -> AsyncIterator[RolloutRecord]:
        """The rollouts one by one, each as soon as it has ended. Raises `NotFound` at the start."""
        records = [self._store.get(rollout_id) for rollout_id in dict.fromkeys(rollout_ids)]
        queue: asyncio.Queue[RolloutRecord] = asyncio.Queue()
        for record in records:
            record.watch(queue.put_nowait)
        try:
            for _ in records:
                yield await queue.get()
        finally:
            for record in records:
                record.unwatch(queue.put_nowait)

    async def cancel(self, rollout_ids: Sequence[str]) -> list[RolloutRecord]:
        """Ended rollouts stay as they are. Returns when all are ended. Raises `NotFound`."""
        records = [self._store.get(rollout_id) for rollout_id in rollout_ids]
        for record in records:
            record.request_cancel()
        self._expect_sandboxes()
        await asyncio.gather(*(record.end_if_waiting() for record in records))
        return [record async for record in self.ended(rollout_ids)]

    def count_by_state(self) -> dict[RolloutState, int]:
        return self._store.count_by_state()

    # --- admission ------------------------------------------------------------------------------

    def _admit(self, group: Group, where: str) -> Admitted:
        model = self._backends.require_model()
        try:
            handler = self.agents[group.task.agent]
        except KeyError:
            raise InvalidRequest.of_field(
                f"{where}.task.agent",
                f"no agent {group.task.agent!r}",
                hint=f"this service has: {', '.join(self.agents.names)}",
            ) from None
        self._check_image(handler, group, where)
        prompt_ids = self._prompt_ids(group, self._check_task(handler, group, where), model)
        if len(prompt_ids) >= model.max_model_len:
            raise InvalidRequest.of_field(
                f"{where}.task.messages",
                f"the prompt has {len(prompt_ids)} tokens, the model takes {model.max_model_len}",
                hint="shorten the prompt; at least one token must be left to sample",
            )
        return Admitted(group, handler, prompt_ids)

    def _check_image(self, handler: type[AgentHandler], group: Group, where: str) -> None:
        if not handler.sandbox_stages:
            return
        try:
            self._sandboxes.check(group.task.image)
        except TaskError as error:
            field = f"{where}.task.image"
            raise InvalidRequest.of_field(field, error.message, hint=error.hint) from None

    def _check_task(self, handler: type[AgentHandler], group: Group, where: str) -> AgentHandler:
        try:
            return handler(group.task)
        except ValidationError as error:
            problems = [
                FieldProblem(
                    field=".".join([f"{where}.task.data", *map(str, problem["loc"])]),
                    message=problem["msg"],
                )
                for problem in error.errors(include_url=False)
            ]
            message = "; ".join(f"{problem.field}: {problem.message}" for problem in problems)
            raise InvalidRequest(message, fields=problems) from None

    def _prompt_ids(self, group: Group, handler: AgentHandler, model: ServedModel) -> list[int]:
        prompt = handler.prompt()
        return model.chat.prompt_ids(
            prompt.messages, tools=prompt.tools, thinking=group.sampling.thinking
        )

    # --- sandboxes to come ----------------------------------------------------------------------

    def _expect_sandboxes(self) -> None:
        """EVAL's first: INIT works ahead of RUN, so that its own can wait."""
        self._sandboxes.expect(
            [
                record.group.task.image
                for pool in (self._eval, self._init)
                for record in pool.next(EXPECTED_SANDBOXES)
                if pool.stage in record.admitted.handler.sandbox_stages
            ]
        )

    # --- stages ---------------------------------------------------------------------------------

    async def _do_init(self, record: RolloutRecord) -> None:
        model = self._backends.require_model()
        group = record.group
        record.handler = record.admitted.handler(group.task)
        resources = AsyncExitStack()
        record.context = RolloutContext(
            rollout_id=record.rollout_id,
            task=group.task,
            sampling=group.sampling,
            limits=group.limits,
            seed=record.seed(),
            prompt_ids=record.admitted.prompt_ids,
            max_model_len=model.max_model_len,
            chat=model.chat,
            generator=resources.enter_context(self._backends.session(record.rollout_id)),
            sandboxes=self._sandboxes,
            scoring=self._scoring,
            resources=resources,
        )
        await record.handler.init(record.context)

    async def _to_ready(self, record: RolloutRecord) -> None:
        record.move(RolloutState.READY)
        await self._run.put(record)

    async def _do_run(self, record: RolloutRecord) -> None:
        handler, context = record.in_progress()
        record.finish_reason = FinishReason(await handler.run(context))

    async def _to_eval(self, record: RolloutRecord) -> None:
        await record.release()
        _, context = record.in_progress()
        context.may_sample = False
        await self._eval.put(record)

    async def _do_eval(self, record: RolloutRecord) -> None:
        handler, context = record.in_progress()
        verdict = await handler.eval(context)
        if not isinstance(verdict, Verdict):
            raise EvaluatorError(f"{type(handler).__name__}.eval returned {verdict!r}, no Verdict")
        record.verdict = verdict

    async def _to_done(self, record: RolloutRecord) -> None:
        await record.release()
        record.end(RolloutState.DONE)
