"""What the pipeline does so that rollouts go on after its process has ended: keeps their turns,
has them stop at the end of a turn, goes on with those of an earlier process.

Nothing is kept with a journal in memory, which ends with its process.
"""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

from prorl_service.pipeline.execution import Execution
from prorl_service.pipeline.keeping import RolloutKeeper, TurnWriter
from prorl_service.pipeline.resuming import resume
from prorl_service.rollouts.journal import Journal, turns
from prorl_service.rollouts.record import RolloutRecord
from prorl_service.sandbox.layer_files import LayerFiles


class KeptRollouts:
    def __init__(
        self, journal: Journal, *, save_every_s: float, on_left: Callable[[], object]
    ) -> None:
        """`on_left` is called when a rollout has stopped because the service ends."""
        self._journal = journal
        self._writer = TurnWriter(journal)
        self._layers = LayerFiles(Path(f"{journal.path}.layers"))
        self._save_every_s = save_every_s
        self._on_left = on_left
        self._keepers: dict[RolloutRecord, RolloutKeeper] = {}

    async def tidy(self) -> None:
        """Removes files that no rollout needs. Call it before any work begins."""
        if self._journal.path is not None:
            needed = await self._journal.read(turns.layers)
            await asyncio.to_thread(self._layers.remove_all_but, needed)

    def watch(self, record: RolloutRecord, execution: Execution) -> None:
        """Keeps the turns of an attempt."""
        if self._journal.path is not None and execution.handler.restores != "nothing":
            execution.context.keeper = self._keepers[record] = RolloutKeeper(
                record,
                execution.handler,
                self._writer,
                self._layers,
                every_s=self._save_every_s,
                on_left=self._on_left,
            )

    async def resume(self, record: RolloutRecord, execution: Execution) -> None:
        """Gives an attempt, after its INIT, what an earlier process kept. Raises `SandboxError`."""
        keeper = self._keepers.get(record)
        if not record.has_kept_turns:
            return
        found = None
        if keeper is not None:
            found = await resume(
                record, execution.handler, execution.context, self._journal, self._layers
            )
        if keeper is None or found is None:
            record.forget_turns()
        else:
            keeper.went_on(len(execution.context.turns), *found)

    def run_begins(self, record: RolloutRecord, execution: Execution) -> None:
        if (keeper := self._keepers.get(record)) is not None:
            keeper.run_begins(execution.context)

    def leave(self) -> None:
        """Has rollouts stop at the end of their turn, and keeps what they have."""
        for keeper in self._keepers.values():
            keeper.leaves = True

    def count_left(self, running: Iterable[RolloutRecord]) -> int:
        """Number of rollouts that have stopped so."""
        keepers = (self._keepers.get(record) for record in running)
        return sum(keeper is not None and keeper.has_left for keeper in keepers)

    def flush(self) -> None:
        self._writer.flush()

    def forget(self, record: RolloutRecord) -> None:
        """Removes the files of a rollout that has ended, or begins anew."""
        self._keepers.pop(record, None)
        if record.layers:
            names, record.layers = record.layers, []
            asyncio.get_running_loop().run_in_executor(None, self._layers.remove, names)
