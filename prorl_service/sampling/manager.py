"""The samplers of the service: made, found, deleted, and restored after a restart."""

import asyncio
import logging
import secrets
import sqlite3
from collections.abc import Sequence
from functools import partial

from prorl_service.errors import Conflict
from prorl_service.inference.pool import BackendPool
from prorl_service.rollouts.executor import RolloutExecutor
from prorl_service.rollouts.journal import Journal
from prorl_service.sampling import tables as tables
from prorl_service.sampling.runner import SamplerRunner, SamplerState, unknown_sampler
from prorl_service.sampling.tables import CandidateRow
from prorl_service.schemas.sampling import SamplerSpec, SamplerStatus
from prorl_service.utils.tasks import TaskOwner

log = logging.getLogger(__name__)


class SamplerManager:
    """Owner of all samplers. Enter it inside the contexts of the journal and the pipeline."""

    def __init__(self, journal: Journal, executor: RolloutExecutor, backends: BackendPool) -> None:
        self.background = TaskOwner()
        self._journal = journal
        self._executor = executor
        self._backends = backends
        self._running: dict[str, SamplerRunner] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._deletions: dict[str, asyncio.Task[None]] = {}
        """Deletions in progress."""

    async def __aenter__(self) -> "SamplerManager":
        for sampler_id, content in await self._journal.read(tables.samplers):
            state = self._journal.parsed(partial(SamplerState.model_validate_json, content))
            sampler = self._new(sampler_id, state.spec, state.incarnation)
            rows = await self._journal.read(self._rows, sampler_id)
            self._journal.parsed(partial(sampler.restore, state, rows))
            self._start(sampler)
        return self

    def _rows(self, db: sqlite3.Connection, sampler_id: str) -> Sequence[CandidateRow]:
        return self._journal.parsed(partial(tables.candidates, db, sampler_id))

    async def __aexit__(self, *_: object) -> None:
        """Stops the samplers, which continue when the service starts again."""
        for sampler in self._running.values():
            sampler.lease.end()
        await self.background.close()

    def end_waits(self) -> None:
        """Ends all waits, for a service that is about to close its connections."""
        for sampler in self._running.values():
            sampler.end_waits()

    async def create(self, sampler_id: str, spec: SamplerSpec) -> SamplerStatus:
        """Makes a sampler; idempotent. Raises `Conflict` if it exists with another spec, and
        `JournalError`."""
        return await self._journal.unless_failing(self._create(sampler_id, spec))

    async def _create(self, sampler_id: str, spec: SamplerSpec) -> SamplerStatus:
        while deletion := self._deletions.get(sampler_id):
            await asyncio.wait([deletion])
        known = self._running.get(sampler_id)
        if known is None:
            self._journal.check_writable()
            known = self._new(sampler_id, spec, secrets.token_hex(4))
            self._start(known)
        elif known.core.spec.run != spec.run:
            raise _of_another_run(sampler_id, known.core.spec.run)
        elif known.core.spec != spec:
            raise Conflict(
                f"sampler {sampler_id!r} exists with another specification",
                hint="delete it first, or take another id",
            )
        return await known.status(after=0, wait_s=None)

    def get(self, sampler_id: str) -> SamplerRunner:
        """Raises `NotFound`."""
        if sampler_id not in self._running:
            raise unknown_sampler(sampler_id)
        return self._running[sampler_id]

    async def delete(self, sampler_id: str) -> None:
        """Cancels what it began and forgets what it gave. Raises `NotFound`, `JournalError`."""
        deletion = self._deletions.get(sampler_id) or self._start_deletion(sampler_id)
        await self._journal.unless_failing(_end_of(deletion))

    async def delete_all_of_others(self, training: str) -> None:
        """Deletes the samplers of trainings but this one. Raises `JournalError`."""
        for sampler_id, sampler in list(self._running.items()):
            if sampler.core.spec.training not in (None, training):
                await self.delete(sampler_id)

    def _start_deletion(self, sampler_id: str) -> "asyncio.Task[None]":
        """Deletes the sampler in the background. Raises `NotFound`."""
        work = self._delete(self.get(sampler_id))
        deletion = self.background.run_once(work, name=f"delete sampler {sampler_id}")
        self._deletions[sampler_id] = deletion
        deletion.add_done_callback(lambda _: self._deletions.pop(sampler_id))
        return deletion

    async def _delete(self, sampler: SamplerRunner) -> None:
        sampler_id = sampler.core.sampler_id
        task = self._tasks[sampler_id]

        def forget() -> None:
            del self._running[sampler_id], self._tasks[sampler_id]
            self.background.cancel(task)

        await sampler.drop(forget)
        await asyncio.wait([task])
        await sampler.release()

    def _new(self, sampler_id: str, spec: SamplerSpec, incarnation: str) -> SamplerRunner:
        sampler = SamplerRunner(
            sampler_id,
            spec,
            self._journal,
            self._executor,
            self._backends,
            lambda: self._expired(sampler_id),
            self.background,
            incarnation=incarnation,
        )
        self._running[sampler_id] = sampler
        return sampler

    def _start(self, sampler: SamplerRunner) -> None:
        sampler_id = sampler.core.sampler_id
        self._tasks[sampler_id] = self.background.start(
            sampler.serve(), name=f"sampler {sampler_id}"
        )

    def _expired(self, sampler_id: str) -> None:
        waiting = self._running[sampler_id].core.status(0).waiting
        text = "sampler %s: its lease expired, it is deleted with %d waiting candidates"
        log.warning(text, sampler_id, waiting)
        if sampler_id not in self._deletions:
            deletion = self._start_deletion(sampler_id)
            deletion.add_done_callback(lambda done: self._keep_if_failed(sampler_id, done))

    def _keep_if_failed(self, sampler_id: str, deletion: "asyncio.Task[None]") -> None:
        """Keeps the sampler for another lease if the journal could not be written."""
        has_failed = not deletion.cancelled() and deletion.exception() is not None
        sampler = self._running.get(sampler_id)
        if has_failed and sampler is not None:  # it failed before the sampler was forgotten
            sampler.lease.renew()


async def _end_of(task: "asyncio.Task[None]") -> None:
    await asyncio.shield(task)


def _of_another_run(sampler_id: str, run: str | None) -> Conflict:
    owner = "no run" if run is None else f"run {run!r}"
    go_on = "" if run is None else f", or name run={run!r} in its specification to continue"
    return Conflict(
        f"sampler {sampler_id!r} belongs to {owner}: another start of a trainer made it",
        hint=f"delete it first (`delete_sampler`), or take another id{go_on}",
    )
