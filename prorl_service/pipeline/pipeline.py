"""Drives accepted rollouts through INIT, RUN and EVAL, and lets callers wait for them.

The three stages are pools of workers that overlap across rollouts. INIT works ahead of RUN, but
only as far as the bounded READY queue lets it, for a ready rollout holds a sandbox. Sandboxes of
INIT and RUN are freed when RUN ends, those of EVAL when EVAL ends. What was accepted is in the
journal, and what a restart finds unfinished there is begun anew. Nothing here touches HTTP.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass
from itertools import chain, islice

from prorl_service.agents.base import RolloutContext, Verdict
from prorl_service.agents.external import External
from prorl_service.agents.registry import AgentRegistry
from prorl_service.background import Background
from prorl_service.errors import Conflict, EvaluatorError, NotFound, ServiceStopping
from prorl_service.inference.pool import BackendPool
from prorl_service.pipeline.admission import Admission, prompt_ids
from prorl_service.pipeline.intake import Intake
from prorl_service.pipeline.journal import Journal
from prorl_service.pipeline.queues import FairQueue, FifoQueue
from prorl_service.pipeline.record import EndedRollout, RolloutRecord
from prorl_service.pipeline.stage import StagePool
from prorl_service.pipeline.under_way import GroupsUnderWay
from prorl_service.rewards.pool import ScoringPool
from prorl_service.sandbox.base import SandboxProvider
from prorl_service.schemas import FinishReason, Group, Rollout, RolloutState, Stage

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


class Pipeline:
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
        self.agents = agents
        self.background = Background()
        self._slots = config.run_workers + config.ready_rollouts
        self._journal = journal
        self._backends = backends
        self._sandboxes = sandboxes
        self._external = external or External()
        self._scoring = ScoringPool()
        self._under_way = GroupsUnderWay(journal)
        self._waits: set[asyncio.Queue[str | None]] = set()
        self._waits_ended = False
        self._expecting: asyncio.Handle | None = None
        self._may_begin = asyncio.Event()
        self._may_begin.set()
        self._changed = asyncio.Event()
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
        self.stages = (self._init, self._run, self._eval)
        self._intake = Intake(
            Admission(agents, backends, sandboxes, self._external),
            journal,
            self._under_way,
            self._queue,
            max_unfinished=config.max_unfinished,
        )

    async def __aenter__(self) -> "Pipeline":
        self._under_way.ended.update(await self._journal.count_ended())
        for group in await self._journal.unfinished():
            self._intake.restore(group)
        for pool in self.stages:
            for number in range(pool.workers):
                self.background.start(pool.serve(), name=f"{pool.stage} worker {number}")
        return self

    async def __aexit__(self, *_: object) -> None:
        """What has not ended stays unfinished in the journal."""
        await self.drain(0)
        await self.background.close()
        await asyncio.gather(*(record.release() for record in self._under_way))
        self._under_way.end_leases()
        if self._expecting is not None:
            self._expecting.cancel()
        await self._scoring.close()

    async def drain(self, budget_s: float) -> None:
        """Begin nothing more, let what runs come to its end within `budget_s`, end all waits."""
        self._begin_nothing_more()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(budget_s):
                    while self._run.at_work or self._eval.at_work or self._eval.waiting:
                        self._changed.clear()
                        await self._changed.wait()
        finally:
            self._waits_ended = True
            for queue in self._waits:
                queue.put_nowait(None)

    def _begin_nothing_more(self) -> None:
        self._intake.refusal = _stopping()
        self._may_begin.clear()

    @property
    def is_stopping(self) -> bool:
        return not self._may_begin.is_set()

    # --- for callers ----------------------------------------------------------------------------

    async def submit(self, groups: Sequence[Group]) -> list[Rollout]:
        """Queue the rollouts of all groups, or of none when any is wrong. Without trajectories.

        A group submitted before gives its rollouts as they are. Raises `InvalidRequest` naming the
        field, `Conflict`, `Overloaded`, `ServiceStopping`, `JournalError`, and `BackendUnavailable`
        when no model is known to check prompts against.
        """
        await self._intake.accept(groups)
        return await self._summaries([one for group in groups for one in group.rollout_ids()])

    async def get(self, rollout_id: str) -> RolloutRecord | EndedRollout:
        """Raises `NotFound`."""
        return self._under_way.get(rollout_id) or await self._ended(rollout_id)

    async def ended(self, rollout_ids: Sequence[str]) -> AsyncIterator[EndedRollout]:
        """The rollouts one by one, each as soon as it has ended. Raises `NotFound`.

        Stops early when the service does.
        """
        queue: asyncio.Queue[str | None] = asyncio.Queue()
        watched: list[RolloutRecord] = []
        self._waits.add(queue)
        if self._waits_ended:
            queue.put_nowait(None)

        def note(record: RolloutRecord) -> None:
            queue.put_nowait(record.rollout_id)

        with ExitStack() as leases:
            leases.callback(self._waits.discard, queue)
            ids = dict.fromkeys(rollout_ids)
            for rollout_id in ids:
                record = self._under_way.get(rollout_id)
                if record is None:
                    queue.put_nowait(rollout_id)
                else:
                    leases.enter_context(self._under_way.lease(record).held())
                    record.watch(note)
                    watched.append(record)
            try:
                for _ in ids:
                    rollout_id_or_end = await queue.get()
                    if rollout_id_or_end is None:
                        return
                    yield await self._ended(rollout_id_or_end)
            finally:
                for record in watched:
                    record.unwatch(note)

    async def watch(self, rollout_ids: Sequence[str], on_end: Callable[[Rollout], None]) -> None:
        """Call `on_end` with each once it has ended, without its trajectory. Raises `NotFound`."""
        others = []
        for rollout_id in rollout_ids:
            record = self._under_way.get(rollout_id)
            if record is None:
                others.append(rollout_id)
            else:
                record.watch(lambda ended: on_end(ended.to_wire()))
        for rollout in await self._summaries(others):
            on_end(rollout)

    def group_ids(self) -> list[str]:
        """Of the groups under way."""
        return self._under_way.group_ids()

    def rollout_ids(self, group_id: str) -> list[str]:
        """Of a group under way."""
        return self._under_way.rollout_ids(group_id)

    @property
    def slots(self) -> int:
        """Rollouts that keep RUN's workers busy: theirs, and those ready for them."""
        return self._slots

    async def check(self, groups: Sequence[Group]) -> None:
        """Whether `submit` would take them, but for their number. Raises `InvalidRequest`."""
        await self._intake.check(groups)

    async def check_known(self, rollout_ids: Iterable[str]) -> None:
        """Raises `NotFound`."""
        others = [one for one in rollout_ids if self._under_way.get(one) is None]
        known = await self._journal.summaries(others)
        for rollout_id in others:
            if rollout_id not in known:
                raise _unknown(rollout_id)

    async def cancel(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        """Ended rollouts stay as they are. Returns when all are ended. Raises `NotFound`."""
        await self.check_known(rollout_ids)
        records = [one for one in map(self._under_way.get, rollout_ids) if one is not None]
        for record in records:
            record.request_cancel()
        self._on_change()
        await asyncio.gather(*(record.end_if_waiting() for record in records))
        async for _ in self.ended([record.rollout_id for record in records]):
            pass
        return await self._summaries(rollout_ids)

    async def acknowledge(self, group_ids: Sequence[str]) -> None:
        """Forget groups whose rollouts have been taken. Raises `Conflict` for one under way."""
        for group_id in group_ids:
            if group_id in self._under_way:
                raise Conflict(
                    f"group {group_id!r} has rollouts that have not ended",
                    hint="wait for them, or cancel them first",
                )
        self._under_way.ended.subtract(await self._journal.forget(group_ids))

    def count_by_state(self) -> dict[RolloutState, int]:
        return self._under_way.count_by_state()

    async def _ended(self, rollout_id: str) -> EndedRollout:
        packed = await self._journal.answer(rollout_id)
        if packed is None:
            raise _unknown(rollout_id)
        return EndedRollout(packed)

    async def _summaries(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        """In order. Raises `NotFound`."""
        under_way = {one: self._under_way.get(one) for one in rollout_ids}
        wire = {one: record.to_wire() for one, record in under_way.items() if record is not None}
        ended = await self._journal.summaries([one for one in rollout_ids if one not in wire])
        wire |= {one: Rollout.model_validate_json(summary) for one, summary in ended.items()}
        try:
            return [wire[rollout_id] for rollout_id in rollout_ids]
        except KeyError as missing:
            raise _unknown(missing.args[0]) from None

    # --- sandboxes to come ----------------------------------------------------------------------

    def _on_change(self) -> None:
        self._changed.set()
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


def _unknown(rollout_id: str) -> NotFound:
    return NotFound(
        f"there is no rollout {rollout_id!r}",
        hint="it was never submitted, or it ended long ago or was acknowledged, and was forgotten",
    )


def _stopping() -> ServiceStopping:
    return ServiceStopping("the service is stopping", hint="submit again when it is back")
