"""Saving an attempt's whole turns: when, and in batches of all rollouts.

A turn is written immediately if the agent needs the conversation alone, else when what its sandbox
holds is saved, too. A kill loses the last `BATCH_S`.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from prorl_service.agents.base import AgentHandler
from prorl_service.attempt import Attempt
from prorl_service.errors import SandboxError
from prorl_service.resume import rows
from prorl_service.resume.files import LayerFiles
from prorl_service.resume.rows import SavedRollout, checksum_of
from prorl_service.resume.turns import Continuation, SavedIds, SavedTurn
from prorl_service.rollouts.journal import Journal
from prorl_service.rollouts.record import RolloutRecord
from prorl_service.tokens.ledger import Span

log = logging.getLogger(__name__)

BATCH_S = 0.25
"""Seconds for which turns are collected before they are written."""
SAVED_BYTES_PER_S = 10 << 20
"""Bytes of each rollout's sandbox that may be saved in a second, except in a drain."""
MAX_LAYER_BYTES = 4 << 30
"""Largest layer that is saved. A rollout whose sandbox holds more starts from scratch."""


class TurnWriter:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._rows: list[SavedRollout] = []
        self._written: list[Callable[[], object]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Future[None] | None = None

    def add(self, row: SavedRollout, on_written: Callable[[], object]) -> None:
        """Calls `on_written` once the row is on disk."""
        self._rows.append(row)
        self._written.append(on_written)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(BATCH_S, self.flush)

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._rows:
            return
        batch, self._rows = self._rows, []
        written, self._written = self._written, []
        # Lost while the disk is full: the rollout then starts from scratch, and no rows pile up.
        self._writing = self._journal.write(rows.save, batch, is_retried=False)
        self._writing.add_done_callback(partial(_after, written))

    async def note_calls(self, rollout_id: str, turn: int, calls: int) -> None:
        """Returns once the note is on disk, or cannot be written."""
        writing = self._journal.write(rows.note_calls, rollout_id, turn, calls, is_retried=False)
        await asyncio.wait([writing])
        _after([], writing)

    async def settle(self) -> None:
        """Returns once all rows are on disk, or cannot be written."""
        self.flush()
        if self._writing is not None:
            await asyncio.wait([self._writing])


def _after(written: Sequence[Callable[[], object]], writing: "asyncio.Future[None]") -> None:
    if writing.cancelled() or writing.exception() is not None:
        return
    for call in written:
        call()


class AttemptSaver:
    """Saves the turns of one attempt."""

    def __init__(
        self,
        record: RolloutRecord,
        handler: AgentHandler,
        attempt: Attempt,
        writer: TurnWriter,
        layer_files: LayerFiles,
        *,
        model: str,
        every_s: float,
        leave: Callable[[RolloutRecord], Awaitable[None]],
    ) -> None:
        """`model`: identity of the one that samples. `every_s`: fewest seconds between two layers
        of the sandbox. `leave` is called when the rollout has stopped to continue elsewhere."""
        self.record = record
        self.handler = handler
        self.attempt = attempt
        self.model = model
        self.layers: list[str] = []
        """Names of the files with what the sandbox held, the newest last."""
        self.must_leave = False
        """True if the rollout stops at the end of its turn, to continue in another process."""
        self.has_left = False
        self._writer = writer
        self._layer_files = layer_files
        self._every_s = every_s
        self._leave_for = leave
        self._count = 0
        """Number of turns that are saved or wait in `_rows`."""
        self._lengths: dict[int, int] = {}
        """Ids that each segment had after those turns."""
        self._checksum = 0
        """Checksum of those turns."""
        self._rows: dict[int, bytes] = {}
        """Whole turns that wait for a layer, by number."""
        self._continuation = b""
        self._layer = ""
        self._saved_at = 0.0
        self._saved_bytes = 0
        self._gives_up = handler.restores == "nothing"

    def continue_from(self, saved: SavedRollout) -> None:
        """Takes over from an earlier attempt, apart from a replay: that is saved as a whole when it
        is over."""
        self._count, self._layer = len(saved.turns), saved.layer
        self._checksum = checksum_of(saved.turns)
        self._lengths = {i: len(one.ids) for i, one in enumerate(self.attempt.ledger.chains)}

    # --- what the attempt says ------------------------------------------------------------------

    async def sampled(self) -> None:
        """Notes that the agent has a turn to act on. Nothing is known to hold what an agent does
        that has the conversation alone."""
        if self.handler.restores == "conversation":
            await self._note_calls(1)

    async def calls_begin(self, calls: int) -> None:
        if self.handler.restores != "conversation":
            await self._note_calls(calls)

    async def _note_calls(self, calls: int) -> None:
        attempt = self.attempt
        with attempt.clock.waiting():
            await self._writer.note_calls(attempt.rollout_id, len(attempt.turns) - 1, calls)

    async def turn_ended(self, next_prompt: Sequence[int] | None) -> None:
        is_replayed = self.handler.restores == "replay"
        if self._gives_up or (next_prompt is None and not is_replayed):
            return
        if (replay := self.attempt.replay) is not None and not replay.is_over:
            if self.must_leave:  # what the replay reads is still saved
                await self._leave()
            return
        if not self.attempt.turns:
            return
        self._collect()
        self._continuation = self._next(next_prompt).to_bytes()
        if self.handler.restores == "sandbox":
            if not (self.must_leave or self._is_due()):
                return
            await self._save_layer()
        self._write()
        if self.must_leave and not self._gives_up:
            await self._leave()

    # --- writing --------------------------------------------------------------------------------

    def _is_due(self) -> bool:
        pause_s = max(self._every_s, self._saved_bytes / SAVED_BYTES_PER_S)
        return time.monotonic() - max(self._saved_at, self.attempt.stage_began_at) >= pause_s

    def _collect(self) -> None:
        """Makes saved turns of those since the last call."""
        ledger = self.attempt.ledger
        for turn in self.attempt.turns[self._count :]:
            known = self._lengths.get(turn.segment, 0)
            saved = SavedTurn(
                ledger.before(turn.segment, turn.start)[known:],
                *ledger.sampled(Span(turn.segment, turn.start, turn.stop)),
                turn,
            )
            row = {self._count: saved.to_bytes()}
            self._rows |= row
            self._checksum = checksum_of(row, self._checksum)
            self._lengths[turn.segment] = len(ledger.before(turn.segment, turn.stop))
            self._count += 1

    def _next(self, next_prompt: Sequence[int] | None) -> Continuation:
        attempt, ledger = self.attempt, self.attempt.ledger
        return Continuation(
            model=self.model,
            next_prompt=None if next_prompt is None else SavedIds.of(next_prompt, ledger),
            prompt=SavedIds.of(attempt.prompt_ids, ledger),
            first_turn=attempt.first_turn,
            begun_calls=attempt.begun_calls,
            worked_s=self.record.worked_s + attempt.clock.worked_s - attempt.stage_began_s,
            kept_at=time.time(),
            agent=self.handler.state(),
            resumed=self.record.resumed,
            kinds=attempt.sampled.kinds,
            final_turn=attempt.final_turn,
        )

    async def _save_layer(self) -> None:
        """Gives up, for this attempt, if the sandbox cannot be saved."""
        try:
            [sandbox] = self.attempt.opened
            with self.attempt.clock.waiting():
                async with sandbox.suspended():
                    layer = await sandbox.save_layer(max_bytes=MAX_LAYER_BYTES)
                self._layer = await asyncio.to_thread(self._layer_files.save, layer)
            self.layers.append(self._layer)
            self._saved_bytes = layer.size_bytes
        except (SandboxError, OSError, ValueError) as error:
            log.info("rollout %s: its turns are not kept: %s", self.record.rollout_id, error)
            self._gives_up = True
        self._saved_at = time.monotonic()

    def _write(self) -> None:
        if self._gives_up:
            return
        record, new, self._rows = self.record, self._rows, {}
        row = SavedRollout(
            record.rollout_id, record.attempt, new, self._continuation, self._layer
        ).sealed(self._checksum, self._count)
        self._writer.add(row, partial(self._written, self._layer))

    def _written(self, layer: str) -> None:
        """Removes the layers that came before: nothing needs them any more."""
        if layer in self.layers:
            old = self.layers[: self.layers.index(layer)]
            del self.layers[: len(old)]
            asyncio.get_running_loop().run_in_executor(None, self._layer_files.remove, old)

    async def _leave(self) -> None:
        """Waits until the service ends."""
        with self.attempt.clock.waiting():
            await self._writer.settle()
            await self._leave_for(self.record)
            await asyncio.Event().wait()
