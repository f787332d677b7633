"""The executor of this process: drives accepted rollouts through INIT, RUN and EVAL.

The three stages are pools of workers that overlap across rollouts. INIT works ahead of RUN, but
only as far as the bounded READY queue allows, since a ready rollout holds a sandbox. Sandboxes of
INIT and RUN are freed when RUN ends, those of EVAL when EVAL ends. `rollouts.executor` defines what
callers may ask; nothing here touches HTTP.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from prorl_service.agents.base import AgentHandler, RolloutContext, Verdict
from prorl_service.agents.registry import AgentRegistry
from prorl_service.agents.services import OperatorServices
from prorl_service.attempt import Attempt, SampledTurns
from prorl_service.errors import AgentError, EvaluatorError, ProcessDied, StageTimeout
from prorl_service.inference.pool import BackendPool
from prorl_service.pipeline.config import PipelineConfig
from prorl_service.pipeline.execution import Execution, replay_of
from prorl_service.pipeline.queues import FairQueue, FifoQueue
from prorl_service.pipeline.stage import StagePool
from prorl_service.pipeline.suspects import Suspects
from prorl_service.resume.resumer import Resumer
from prorl_service.rewards.pool import ScoringPool
from prorl_service.rollouts.containment import contain_tasks, described, make_handler
from prorl_service.rollouts.executor import RolloutExecutor
from prorl_service.rollouts.journal import Journal, tables
from prorl_service.rollouts.record import RolloutRecord
from prorl_service.rollouts.validation import Local, Validator, prompt_ids
from prorl_service.sandbox.base import SandboxProvider
from prorl_service.schemas import ErrorInfo, FinishReason, RolloutState, Stage, Task
from prorl_service.schemas.activity import Activity, WaitsFor
from prorl_service.utils.budget import WorkClock

log = logging.getLogger(__name__)

RETRY_S = 1.0
"""Seconds before the first retry of a rollout; doubled with each retry."""
ALONE = "alone"
"""Key of the journal for the suspect that was tested alone last."""
NEXT_STAGE = {
    RolloutState.QUEUED: Stage.INIT,
    RolloutState.INIT: Stage.INIT,
    RolloutState.READY: Stage.RUN,
    RolloutState.RUNNING: Stage.EVAL,
    RolloutState.EVALUATING: Stage.EVAL,
}
"""Stage that a waiting rollout enters next, by its state."""
EXPECTED_SANDBOXES = 256
"""Most sandboxes announced to their provider before they are needed."""


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
        max_unfinished_per_client: int | None = None,
        shared: Path | None = None,
    ) -> None:
        """`journal` must be open for as long as this runs. `shared`: directory through which
        rollouts of fronts are handed over to another service when this one ends."""
        self._services = services or OperatorServices()
        validator = Validator(agents, backends, Local(sandboxes, self._services))
        super().__init__(
            journal,
            validator,
            max_unfinished=max_unfinished,
            max_unfinished_per_client=max_unfinished_per_client,
        )
        self._max_attempts = config.max_attempts
        self._suspects = Suspects(self, max_attempts=config.max_attempts)
        self._grades_timeouts = config.on_timeout == "grade"
        self._resumer = Resumer(
            journal,
            save_every_s=config.save_every_s,
            shared=shared,
            on_left=self.note_change,
        )
        self._slots = config.run_workers + config.ready_rollouts
        self._backends = backends
        self._sandboxes = sandboxes
        self._scoring = ScoringPool()
        self._executions: dict[RolloutRecord, Execution] = {}
        """Attempts in flight whose agent has been made."""
        self._expecting: asyncio.Handle | None = None
        self._init = StagePool(Stage.INIT, self, workers=config.init_workers, queue=FairQueue())
        ready = FifoQueue(config.ready_rollouts)
        self._run = StagePool(Stage.RUN, self, workers=config.run_workers, queue=ready)
        self._eval = StagePool(Stage.EVAL, self, workers=config.eval_workers, queue=FifoQueue())
        self._stages = (self._init, self._run, self._eval)

    def note_alone(self, alone: str) -> None:
        self._journal.write(tables.remember, ALONE, alone.encode())

    def _begin_work(self) -> None:
        self._suspects.begin()
        contain_tasks(asyncio.get_running_loop())
        for pool in self._stages:
            for number in range(pool.workers):
                self.background.start(pool.serve(), name=f"{pool.stage} worker {number}")

    async def __aenter__(self) -> Self:
        await self._resumer.tidy()
        self._suspects.alone = (await self._journal.read(tables.recall, ALONE) or b"").decode()
        return await super().__aenter__()

    async def drain(self, budget_s: float) -> None:
        """Rollouts that can continue in another process stop at the end of their turn."""
        self._resumer.hand_over()
        await super().drain(budget_s)

    async def __aexit__(self, *exc_info: object) -> None:
        await super().__aexit__(*exc_info)
        self._resumer.flush()
        for record in self.inflight:
            if record.state is not RolloutState.QUEUED and record.outcome is None:
                record.take_back_attempt()
        if self._expecting is not None:
            self._expecting.cancel()
        await self._scoring.close()

    def _is_running(self) -> bool:
        have_left = self._resumer.count_left(self._run.running)
        is_running = len(self._run.running) > have_left
        return bool(is_running or self._eval.running or self._eval.waiting)

    @property
    def slots(self) -> int:
        return self._slots

    def queues(self) -> dict[str, int]:
        return {pool.stage: pool.waiting for pool in self._stages}

    def workers(self) -> dict[Stage, int]:
        return {pool.stage: pool.workers for pool in self._stages}

    def running(self) -> dict[Stage, int]:
        return {pool.stage: len(pool.running) for pool in self._stages}

    def oldest_s(self) -> dict[Stage, float]:
        now = {pool.stage: map(self.activity, pool.running) for pool in self._stages}
        return {
            stage: max((one.took_s for one in found if one is not None), default=0.0)
            for stage, found in now.items()
        }

    def progress(self, record: RolloutRecord) -> SampledTurns | None:
        execution = self._executions.get(record)
        return None if execution is None else execution.attempt.sampled

    def activity(self, record: RolloutRecord) -> Activity | None:
        if record.outcome is not None:
            return None
        execution = self._executions.get(record)
        if record.is_waiting or execution is None:
            has_engine, waited_s = self._backends.is_serving, record.waited_s
            return Activity(
                stage=NEXT_STAGE[record.state],
                is_queued=True,
                took_s=waited_s,
                waits_for=WaitsFor.WORKER if has_engine else WaitsFor.ENGINE,
                waits_s=waited_s,
            )
        return execution.attempt.activity(record.budget_s(execution.attempt.stage))

    # --- sandboxes to come ----------------------------------------------------------------------

    def note_change(self) -> None:
        super().note_change()
        if self._expecting is None:  # once for all changes of this turn of the event loop
            self._expecting = asyncio.get_running_loop().call_soon(self._expect_sandboxes)

    def _expect_sandboxes(self) -> None:
        """Announces the next sandboxes, EVAL's first: INIT works ahead of RUN, so its own can
        wait."""
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
            if stage in self.agents[record.group.task.agent].sandbox_stages
        )
        self._sandboxes.prewarm(list(islice(wanted, EXPECTED_SANDBOXES)))

    # --- stages ---------------------------------------------------------------------------------

    def _queue(self, record: RolloutRecord) -> None:
        """Begins a rollout. One with earlier attempts was at work when an earlier process died."""
        if self._suspects.has_ended_the_process(record):
            self._end(record, RolloutState.FAILED, _died_with(record).info())
        else:
            self._suspects.put(record)

    def begin(self, record: RolloutRecord) -> None:
        self._init.put_nowait(record)
        self.note_change()

    def _retry(self, record: RolloutRecord, problem: ErrorInfo) -> bool:
        """Begins the rollout from scratch after a delay, unless it used up RUN's budget, as it
        would again. Returns whether it does."""
        is_over_budget = (problem.kind, problem.stage) == (StageTimeout.__name__, Stage.RUN)
        failures = record.attempt - record.restored_attempts
        if not problem.retryable or is_over_budget or failures >= self._max_attempts:
            return False
        log.info("rollout %s is retried: %s", record.rollout_id, problem.message)
        self._executions.pop(record, None)
        self._resumer.forget(record, starts_over=True)
        record.stages[-1].retried = problem
        record.start_over()
        delay_s = RETRY_S * 2 ** (failures - 1)
        asyncio.get_running_loop().call_later(delay_s, self.begin, record)
        return True

    async def may_begin(self, stage: Stage, record: RolloutRecord) -> None:
        """INIT waits for engines, which may take minutes after a restart, and for a writable
        journal: rollouts whose end would be lost need not run. RUN waits for an engine, and
        for room in the engines' cache, before a budget begins; a rollout is READY meanwhile."""
        if stage is Stage.EVAL:
            return
        if stage is Stage.INIT:
            await self._backends.until_up()
            await self._journal.writable.wait()
        else:
            await self._backends.until_serving()
            if (execution := self._executions.get(record)) is not None:
                await execution.until_admitted(record.group.group_id)
        await self._gate.wait()

    async def work(self, stage: Stage, record: RolloutRecord) -> None:
        work = {Stage.INIT: self._do_init, Stage.RUN: self._do_run, Stage.EVAL: self._do_eval}
        await work[stage](record)

    async def hand_on(self, stage: Stage, record: RolloutRecord) -> None:
        to_next = {Stage.INIT: self._to_ready, Stage.RUN: self._to_eval, Stage.EVAL: self._to_done}
        await to_next[stage](record)

    async def _do_init(self, record: RolloutRecord) -> None:
        clock = WorkClock()
        async with self._budget(Stage.INIT, record, clock):
            with clock.waiting():
                await record.begin()
            execution = self._executions[record] = await self._prepare(record, clock)
            execution.attempt.enter(Stage.INIT)
            await execution.handler.init(execution.context)
            await self._resumer.restore(record)

    async def _prepare(self, record: RolloutRecord, clock: WorkClock) -> Execution:
        model = self._backends.model.require()
        async with AsyncExitStack() as resources:
            session = resources.enter_context(self._backends.session(record.rollout_id, clock))
            group, admitted = record.group, record.admitted
            task = group.task.model_copy(deep=True)
            handler = self._handler(task)
            if admitted.model != model.name:
                ids = await asyncio.to_thread(prompt_ids, group, handler, model, self._services)
                admitted.model, admitted.prompt_ids = model.name, ids
            attempt = Attempt(
                rollout_id=record.rollout_id,
                task=task,
                sampling=group.sampling,
                limits=group.limits,
                seed=record.seed(),
                prompt_ids=admitted.prompt_ids,
                max_model_len=self._backends.model.context_for(len(admitted.prompt_ids)),
                chat=model.chat,
                generator=session,
                sandboxes=self._sandboxes,
                scoring=self._scoring,
                clock=clock,
                resources=resources.pop_all(),
                on_change=self.inflight.observers.on_change,
            )
        if group.start is not None:
            attempt.replay = replay_of(group.start, handler, model.chat)
            if group.start.trajectory is not None:
                attempt.sampled.pictures |= group.start.trajectory.contents()
        self._resumer.save(record, handler, attempt, model.identity)
        return Execution(handler, RolloutContext(attempt, self._services), session, group.start)

    def _handler(self, task: Task) -> AgentHandler:
        """Raises `AgentError` if the constructor refuses `task`, which it accepted at
        submission."""
        try:
            return make_handler(self.agents, task)
        except ValidationError as error:
            name = self.agents[task.agent].__name__
            raise AgentError(f"{name}.__init__ raised {described(error)}") from error

    async def _to_ready(self, record: RolloutRecord) -> None:
        record.move(RolloutState.READY)
        await self._run.put(record)

    async def _do_run(self, record: RolloutRecord) -> None:
        execution = self._executions[record]
        handler = execution.handler
        async with self._budget(Stage.RUN, record, execution.attempt.clock):
            execution.attempt.enter(Stage.RUN)
            reason = await handler.run(execution.context)
            if reason not in tuple(FinishReason):
                raise AgentError(
                    f"{type(handler).__name__}.run returned {reason!r}, not a FinishReason",
                    hint="return FinishReason.FINISHED, or another reason why it stopped",
                )
            execution.finish_reason = FinishReason(reason)
            if execution.finish_reason is FinishReason.TIMEOUT:
                raise StageTimeout(Stage.RUN, record.budget_s(Stage.RUN), execution.waits_for())
            if execution.attempt.replay is not None:
                execution.attempt.replay.end()

    async def _to_eval(self, record: RolloutRecord) -> None:
        execution = self._executions[record]
        await execution.attempt.release()
        execution.attempt.end_turns()
        await self._eval.put(record)

    async def _do_eval(self, record: RolloutRecord) -> None:
        execution = self._executions[record]
        handler = execution.handler
        async with self._budget(Stage.EVAL, record, execution.attempt.clock):
            execution.attempt.enter(Stage.EVAL)
            verdict = await handler.eval(execution.context)
            if not isinstance(verdict, Verdict):
                name = type(handler).__name__
                raise EvaluatorError(
                    f"{name}.eval returned {verdict!r}, not a Verdict",
                    hint="return Verdict(reward)",
                )
            execution.verdict = verdict.checked(turns=len(execution.context.turns))

    async def _to_done(self, record: RolloutRecord) -> None:
        await self._release(record)
        self._end(record, RolloutState.DONE)

    @asynccontextmanager
    async def _budget(
        self, stage: Stage, record: RolloutRecord, clock: WorkClock
    ) -> AsyncIterator[None]:
        """Bounds the block. Raises `StageTimeout`, even if the work raises another error when it is
        cancelled."""
        budget_s, waited_s = record.budget_s(stage), clock.waited_s
        try:
            async with clock.deadline(budget_s) as deadline:
                yield
        except asyncio.CancelledError:
            raise
        except Exception:
            if deadline.expired():
                execution = self._executions.get(record)
                blame = execution.waits_for() if execution is not None else None
                raise StageTimeout(stage, budget_s, blame) from None
            raise
        finally:
            record.timings.waited_s += clock.waited_s - waited_s

    def accepts_timeout(self, record: RolloutRecord) -> bool:
        """Returns whether it is graded: after RUN, and with at least one turn to learn from."""
        execution = self._executions.get(record)
        if execution is None:
            return False
        execution.finish_reason = FinishReason.TIMEOUT
        is_run = record.state is RolloutState.RUNNING
        return is_run and self._grades_timeouts and bool(execution.attempt.turns)

    async def fail(self, record: RolloutRecord, problem: ErrorInfo | None) -> None:
        await self._release(record)
        if record.cancel_requested:
            self._end(record, RolloutState.CANCELLED, record.cancel_reason)
        elif problem is not None and not self._retry(record, problem):
            self._end(record, RolloutState.FAILED, problem)

    async def _release(self, record: RolloutRecord) -> None:
        if (execution := self._executions.get(record)) is not None:
            await execution.attempt.release()

    def _end(
        self, record: RolloutRecord, state: RolloutState, error: ErrorInfo | None = None
    ) -> None:
        self._resumer.forget(record)
        record.end(state, error, self._executions.pop(record, None))


def _died_with(record: RolloutRecord) -> ProcessDied:
    return ProcessDied(
        f"the service's process died in attempt {record.attempt} of the rollout",
        hint="does its agent end the process, crash it or take its memory? "
        "`prorl serve --max-attempts` allows more attempts",
    )
