"""Drives accepted rollouts through INIT, RUN and EVAL.

The three stages are pools of workers that overlap across rollouts. INIT works ahead of RUN, but
only as far as the bounded READY queue lets it, for a ready rollout holds a sandbox. Sandboxes of
INIT and RUN are freed when RUN ends, those of EVAL when EVAL ends. What callers may ask is
`accepted`'s; nothing here touches HTTP.
"""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import chain, islice

from prorl_service.agents.base import RolloutContext, Verdict
from prorl_service.agents.external import External
from prorl_service.agents.registry import AgentRegistry
from prorl_service.errors import EvaluatorError
from prorl_service.inference.pool import BackendPool
from prorl_service.pipeline.accepted import AcceptedRollouts
from prorl_service.pipeline.admission import Admission, prompt_ids
from prorl_service.pipeline.journal import Journal
from prorl_service.pipeline.queues import FairQueue, FifoQueue
from prorl_service.pipeline.record import RolloutRecord
from prorl_service.pipeline.stage import StagePool
from prorl_service.rewards.pool import ScoringPool
from prorl_service.sandbox.base import SandboxProvider
from prorl_service.schemas import FinishReason, RolloutState, Stage

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


class Pipeline(AcceptedRollouts):
    def __init__(
        self,
        journal: Journal,
        backends: BackendPool,
        sandboxes: SandboxProvider,
        agents: AgentRegistry,
        config: PipelineConfig = PipelineConfig(),
        external: External | None = None,
    ) -> None:
        """`journal` must be open for as long as this runs."""
        self._external = external or External()
        admission = Admission(agents, backends, sandboxes, self._external)
        super().__init__(journal, admission, max_unfinished=config.max_unfinished)
        self._slots = config.run_workers + config.ready_rollouts
        self._backends = backends
        self._sandboxes = sandboxes
        self._scoring = ScoringPool()
        self._expecting: asyncio.Handle | None = None
        self._init = StagePool(
            Stage.INIT,
            workers=config.init_workers,
            queue=FairQueue(),
            work=self._do_init,
            hand_on=self._to_ready,
            entering=RolloutState.INIT,
            may_begin=self._may_begin_init,
            on_change=self._on_change,
        )
        self._run = StagePool(
            Stage.RUN,
            workers=config.run_workers,
            queue=FifoQueue(config.ready_rollouts),
            work=self._do_run,
            hand_on=self._to_eval,
            entering=RolloutState.RUNNING,
            may_begin=self._may_begin.wait,
            on_change=self._on_change,
        )
        self._eval = StagePool(
            Stage.EVAL,
            workers=config.eval_workers,
            queue=FifoQueue(),
            work=self._do_eval,
            hand_on=self._to_done,
            entering=RolloutState.EVALUATING,
            on_change=self._on_change,
        )
        self._stages = (self._init, self._run, self._eval)

    def _begin_work(self) -> None:
        for pool in self._stages:
            for number in range(pool.workers):
                self.background.start(pool.serve(), name=f"{pool.stage} worker {number}")

    async def __aexit__(self, *exc_info: object) -> None:
        await super().__aexit__(*exc_info)
        if self._expecting is not None:
            self._expecting.cancel()
        await self._scoring.close()

    def _is_at_work(self) -> bool:
        return bool(self._run.at_work or self._eval.at_work or self._eval.waiting)

    @property
    def slots(self) -> int:
        return self._slots

    def queues(self) -> dict[str, int]:
        return {pool.stage: pool.waiting for pool in self._stages}

    def workers(self) -> dict[Stage, int]:
        return {pool.stage: pool.workers for pool in self._stages}

    # --- sandboxes to come ----------------------------------------------------------------------

    def _on_change(self) -> None:
        super()._on_change()
        if self._expecting is None:  # once for all that changes together
            self._expecting = asyncio.get_running_loop().call_soon(self._expect_sandboxes)

    def _expect_sandboxes(self) -> None:
        """EVAL's first: INIT works ahead of RUN, so that its own can wait."""
        self._expecting = None
        queued = (
            (pool.stage, record)
            for pool in (self._eval, self._init)
            for record in pool.next(EXPECTED_SANDBOXES)
        )
        to_eval = ((Stage.EVAL, record) for record in self._run.at_work)
        wanted = (
            record.group.task.image
            for stage, record in chain(queued, to_eval)
            if stage in record.agent.sandbox_stages
        )
        self._sandboxes.expect(list(islice(wanted, EXPECTED_SANDBOXES)))

    # --- stages ---------------------------------------------------------------------------------

    def _queue(self, record: RolloutRecord) -> None:
        self._init.put_nowait(record)
        self._on_change()

    async def _may_begin_init(self) -> None:
        """After a restart engines may take minutes; rollouts whose end is lost need not run."""
        await self._may_begin.wait()
        await self._backends.model_known()
        await self._journal.writable.wait()

    async def _do_init(self, record: RolloutRecord) -> None:
        record.begin()
        model = self._backends.model.require()
        resources = AsyncExitStack()
        generator = resources.enter_context(self._backends.session(record.rollout_id))
        group = record.group
        handler = record.handler = record.agent(group.task)
        admitted = record.admitted
        if admitted.model != model.name:
            ids = await asyncio.to_thread(
                prompt_ids, group, handler, model, self._external, group.group_id
            )
            admitted.model, admitted.prompt_ids = model.name, ids
        record.context = RolloutContext(
            rollout_id=record.rollout_id,
            task=group.task,
            sampling=group.sampling,
            limits=group.limits,
            seed=record.seed(),
            prompt_ids=admitted.prompt_ids,
            max_model_len=model.max_model_len,
            chat=model.chat,
            generator=generator,
            sandboxes=self._sandboxes,
            scoring=self._scoring,
            external=self._external,
            resources=resources,
        )
        await handler.init(record.context)

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
