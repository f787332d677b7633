"""Rollouts that continue in another process, for the pipeline: it keeps their turns, stops them at
the end of a turn, and resumes those of an earlier process.

Nothing is kept with a journal in memory, which ends with its process.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from prorl_service.pipeline.execution import Execution
from prorl_service.pipeline.handover import Handover
from prorl_service.pipeline.keeping import RolloutKeeper, TurnWriter
from prorl_service.pipeline.resuming import from_scratch, resume
from prorl_service.rollouts.journal import Journal, turns
from prorl_service.rollouts.record import RolloutRecord
from prorl_service.sandbox.layer_files import LayerFiles

log = logging.getLogger(__name__)


class KeptRollouts:
    def __init__(
        self,
        journal: Journal,
        *,
        save_every_s: float,
        shared: Path | None,
        on_left: Callable[[], object],
    ) -> None:
        """`shared`: directory through which services hand rollouts over. `on_left` is called when a
        rollout has stopped because the service ends."""
        self._journal = journal
        self._writer = TurnWriter(journal)
        self._layers = LayerFiles(Path(f"{journal.path}.layers"))
        self._save_every_s = save_every_s
        self._on_left = on_left
        self._handover = None if shared is None else Handover(shared, self._layers)
        self._keepers: dict[RolloutRecord, RolloutKeeper] = {}

    async def tidy(self) -> None:
        """Removes files that no rollout needs. Call it before any work begins."""
        if self._journal.path is not None:
            needed = await self._journal.read(turns.layers)
            await asyncio.to_thread(self._layers.remove_all_but, needed)
        if self._handover is not None:
            await asyncio.to_thread(self._handover.tidy)

    def watch(self, record: RolloutRecord, execution: Execution, model: str) -> None:
        """Keeps the turns of an attempt, which the model with this identity samples."""
        if self._journal.path is not None:
            execution.context.keeper = self._keepers[record] = RolloutKeeper(
                record,
                execution.handler,
                self._writer,
                self._layers,
                model=model,
                every_s=self._save_every_s,
                hand_over=partial(self._give, record),
                on_left=self._on_left,
            )

    async def resume(self, record: RolloutRecord, execution: Execution) -> None:
        """Gives an attempt, after its INIT, what an earlier process kept. Raises `SandboxError`."""
        keeper = self._keepers.get(record)
        if keeper is None:  # the journal is in memory
            return
        rollout, handler = execution.context, execution.handler
        if not record.has_kept_turns and handler.restores != "nothing":
            await self._take_over(record)
        kept = None
        if record.has_kept_turns and handler.restores != "nothing":
            kept = await resume(record, handler, rollout, self._journal, self._layers, keeper.model)
        if kept is not None:
            keeper.went_on(rollout, kept)
            return
        if record.has_kept_turns:
            record.forget_turns()
        if record.attempt > 1:
            await from_scratch(record, rollout, self._journal)

    def run_begins(self, record: RolloutRecord, execution: Execution) -> None:
        if (keeper := self._keepers.get(record)) is not None:
            keeper.run_begins(execution.context)

    def leave(self) -> None:
        """Has rollouts stop at the end of their turn, and keeps what they have."""
        for keeper in self._keepers.values():
            keeper.leaves = True

    async def _give(self, record: RolloutRecord) -> None:
        """Hands the rollout over, if a front could give it to another service."""
        if self._handover is not None and record.group.owner:
            kept = partial(turns.kept, rollout_id=record.rollout_id)
            if found := await self._journal.read(kept):
                try:
                    await asyncio.to_thread(self._handover.give, record.group, found)
                except OSError as error:
                    log.warning("rollout %s is not handed over: %s", record.rollout_id, error)

    async def _take_over(self, record: RolloutRecord) -> None:
        """Gives the rollout the turns that another service has handed over."""
        group = record.group
        if self._handover is None or not group.owner:
            return
        taken = await asyncio.to_thread(
            self._handover.take, group, record.rollout_id, record.attempt
        )
        if taken is not None:
            await self._journal.write(partial(turns.keep, rows=[taken]))
            record.has_kept_turns = True

    def count_left(self, running: Iterable[RolloutRecord]) -> int:
        """Number of rollouts that have stopped so."""
        keepers = (self._keepers.get(record) for record in running)
        return sum(keeper is not None and keeper.has_left for keeper in keepers)

    def flush(self) -> None:
        self._writer.flush()

    def forget(self, record: RolloutRecord) -> None:
        """Removes the files of a rollout that has ended or starts from scratch."""
        self._keepers.pop(record, None)
        self._writer.flush()  # turns that wait must not be written after those of the next attempt
        if record.layers:
            names, record.layers = record.layers, []
            asyncio.get_running_loop().run_in_executor(None, self._layers.remove, names)
