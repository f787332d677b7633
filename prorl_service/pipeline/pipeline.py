"""Drives accepted rollouts through INIT, RUN and EVAL.

The three stages are pools of workers that overlap across rollouts. INIT works ahead of RUN, but
only as far as the bounded READY queue lets it, for a ready rollout holds a sandbox. Sandboxes of
INIT and RUN are freed when RUN ends, those of EVAL when EVAL ends. What callers may ask is
`accepted`'s; nothing here touches HTTP.
"""

import asyncio
import logging
from contextlib import AsyncExitStack
from itertools import chain, islice
from typing import Literal

from pydantic import PositiveInt, ValidationError
from pydantic.dataclasses import dataclass

from prorl_service.agents.base import AgentHandler, RolloutContext, Verdict
from prorl_service.agents.registry import AgentRegistry
from prorl_service.agents.services import OperatorServices
from prorl_service.errors import AgentError, EvaluatorError, ProcessDied, StageTimeout
from prorl_service.inference.pool import BackendPool
from prorl_service.pipeline.queues import FairQueue, FifoQueue
from prorl_service.pipeline.stage import StagePool
from prorl_service.pipeline.suspects import Suspects
from prorl_service.rewards.pool import ScoringPool
from prorl_service.rollouts.containment import contain_tasks, described, make_handler
from prorl_service.rollouts.executor import RolloutExecutor
from prorl_service.rollouts.journal import Journal
from prorl_service.rollouts.record import RolloutRecord
from prorl_service.rollouts.validation import Local, Validator, prompt_ids
from prorl_service.sandbox.base import SandboxProvider
from prorl_service.schemas import ErrorInfo, FinishReason, RolloutState, Stage, Task

OnTimeout = Literal["grade", "fail"]

log = logging.getLogger(__name__)

RETRY_S = 1.0
"""Delay before the first retry of a rollout; it doubles with each retry."""
EXPECTED_SANDBOXES = 256
"""How far ahead the provider of sandboxes is told what will be asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig:
    init_workers: PositiveInt = 8
    """Workers of INIT, which prepares sandboxes."""
    run_workers: PositiveInt = 64
    """Workers of RUN: rollouts that sample at the same time."""
    eval_workers: PositiveInt = 8
    """Workers of EVAL, which scores."""
    ready_rollouts: PositiveInt = 8
    """Rollouts that INIT may finish ahead of RUN; each holds a sandbox."""
    max_attempts: PositiveInt = 3
    """Most attempts of a rollout. It begins again after a failure that a retry may mend, and after
    the service's process died."""
    on_timeout: OnTimeout = "grade"
    """Fate of a rollout that used up RUN's budget by its own work: graded like one that ran out of
    turns, or failed."""


class Pipeline(RolloutExecutor):
    def __init__(
        self,
        journal: Journal,
        backends: BackendPool,
        sandboxes: SandboxProvider,
        agents: AgentRegistry,
        config: PipelineConfig = PipelineConfig(),
        services: OperatorServices | None = None,
        *,
        max_unfinished: int = 50_000,
    ) -> None:
        """`journal` must be open for as long as this runs."""
        self._services = services or OperatorServices()
        validator = Validator(agents, backends, Local(sandboxes, self._services))
        super().__init__(journal, validator, max_unfinished=max_unfinished)
        self._max_attempts = config.max_attempts
        self._suspects = Suspects(self._begin)
        self._grades_timeouts = config.on_timeout == "grade"
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
            on_success=self._to_ready,
            entering=RolloutState.INIT,
            gate=self._may_begin_init,
            on_change=self._on_change,
            retry=self._retry,
        )
        self._run = StagePool(
            Stage.RUN,
            workers=config.run_workers,
            queue=FifoQueue(config.ready_rollouts),
            work=self._do_run,
            on_success=self._to_eval,
            entering=RolloutState.RUNNING,
            gate=self._may_begin_run,
            on_change=self._on_change,
            retry=self._retry,
            is_good_enough=self._is_graded,
        )
        self._eval = StagePool(
            Stage.EVAL,
            workers=config.eval_workers,
            queue=FifoQueue(),
            work=self._do_eval,
            on_success=self._to_done,
            entering=RolloutState.EVALUATING,
            on_change=self._on_change,
            retry=self._retry,
        )
        self._stages = (self._init, self._run, self._eval)

    def _begin_work(self) -> None:
        contain_tasks(asyncio.get_running_loop())
        for pool in self._stages:
            for number in range(pool.workers):
                self.background.start(pool.serve(), name=f"{pool.stage} worker {number}")

    async def __aexit__(self, *exc_info: object) -> None:
        await super().__aexit__(*exc_info)
        for record in self._inflight:
            if record.state is not RolloutState.QUEUED and record.end_state is None:
                record.take_back_attempt()
        if self._expecting is not None:
            self._expecting.cancel()
        await self._scoring.close()

    def _is_running(self) -> bool:
        return bool(self._run.running or self._eval.running or self._eval.waiting)

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
        to_eval = ((Stage.EVAL, record) for record in self._run.running)
        wanted = (
            record.group.task.image
            for stage, record in chain(queued, to_eval)
            if stage in record.agent.sandbox_stages
        )
        self._sandboxes.prewarm(list(islice(wanted, EXPECTED_SANDBOXES)))

    # --- stages ---------------------------------------------------------------------------------

    def _queue(self, record: RolloutRecord) -> None:
        """One with an attempt behind it was at work when an earlier process died."""
        if record.attempt >= self._max_attempts:
            record.end(RolloutState.FAILED, _died_with(record).info())
        elif record.attempt and record.attempt == self._max_attempts - 1:
            self._suspects.add(record)
        else:
            self._begin(record)

    def _begin(self, record: RolloutRecord) -> None:
        self._init.put_nowait(record)
        self._on_change()

    def _retry(self, record: RolloutRecord, problem: ErrorInfo) -> bool:
        """Begins the rollout from scratch after a delay, unless it used up RUN's budget: it would
        again."""
        is_over_budget = (problem.kind, problem.stage) == (StageTimeout.__name__, Stage.RUN)
        if not problem.retryable or is_over_budget or record.attempt >= self._max_attempts:
            return False
        log.info("rollout %s is begun again: %s", record.rollout_id, problem.message)
        record.start_over()
        delay_s = RETRY_S * 2 ** (record.attempt - 1)
        asyncio.get_running_loop().call_later(delay_s, self._begin, record)
        return True

    async def _may_begin_init(self) -> None:
        """After a restart engines may take minutes; rollouts whose end is lost need not run."""
        await self._backends.until_up()
        await self._journal.writable.wait()
        await self._gate.wait()

    async def _do_init(self, record: RolloutRecord) -> None:
        with record.clock.waiting():
            await record.begin()
        model = self._backends.model.require()
        resources = AsyncExitStack()
        session = self._backends.session(record.rollout_id, record.clock)
        generator = resources.enter_context(session)
        group = record.group
        task = group.task.model_copy(deep=True)
        handler = record.handler = _handler_of(record, task)
        admitted = record.admitted
        if admitted.model != model.name:
            ids = await asyncio.to_thread(
                prompt_ids, group, handler, model, self._services, group.group_id
            )
            admitted.model, admitted.prompt_ids = model.name, ids
        record.context = RolloutContext(
            rollout_id=record.rollout_id,
            task=task,
            sampling=group.sampling,
            limits=group.limits,
            seed=record.seed(),
            prompt_ids=admitted.prompt_ids,
            max_model_len=self._backends.model.context_for(len(admitted.prompt_ids)),
            chat=model.chat,
            generator=generator,
            sandboxes=self._sandboxes,
            scoring=self._scoring,
            services=self._services,
            resources=resources,
            clock=record.clock,
        )
        await handler.init(record.context)

    async def _to_ready(self, record: RolloutRecord) -> None:
        record.move(RolloutState.READY)
        await self._run.put(record)

    async def _may_begin_run(self) -> None:
        """No budget is begun that would only wait. A rollout is ready while it waits here."""
        await self._backends.until_serving()
        await self._gate.wait()

    async def _do_run(self, record: RolloutRecord) -> None:
        handler, context = record.in_progress()
        reason = await handler.run(context)
        if reason not in tuple(FinishReason):
            raise AgentError(
                f"{type(handler).__name__}.run returned {reason!r}, no FinishReason",
                hint="return FinishReason.FINISHED, or why else it stopped",
            )
        record.finish_reason = FinishReason(reason)
        if record.finish_reason is FinishReason.TIMEOUT:
            raise StageTimeout(Stage.RUN, record.budget_s(Stage.RUN), record.waited_for())

    def _is_graded(self, record: RolloutRecord) -> bool:
        """Whether a timed-out rollout is graded: without a turn there is nothing to learn from."""
        _, context = record.in_progress()
        return self._grades_timeouts and bool(context.turns)

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


def _died_with(record: RolloutRecord) -> ProcessDied:
    return ProcessDied(
        f"the service's process died with the rollout at work, which was begun {record.attempt} x",
        hint="does its agent end the process, crash it or take its memory? "
        "`prorl serve --max-attempts` allows more attempts",
    )


def _handler_of(record: RolloutRecord, task: Task) -> AgentHandler:
    """What its constructor refuses now, it took at submission."""
    try:
        return make_handler(record.agent, task)
    except ValidationError as error:
        raise AgentError(f"{record.agent.__name__}.__init__ raised {described(error)}") from error
