"""Keeping rollouts' whole turns, so that another process can continue from them.

`RolloutKeeper` decides for one rollout when a turn can be written: immediately if the agent needs
the conversation alone, else when what its sandbox holds is saved, too. `TurnWriter` writes turns of
all rollouts, a batch at a time; a kill loses the last `BATCH_S`. `pipeline.resuming` reads them.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from prorl_service.agents.base import AgentHandler, RolloutContext
from prorl_service.agents.kept import Continuation, KeptIds, KeptTurn
from prorl_service.errors import SandboxError
from prorl_service.rollouts.journal import Journal, turns
from prorl_service.rollouts.journal.turns import KeptRollout, checksum_of
from prorl_service.rollouts.record import RolloutRecord
from prorl_service.sandbox.layer_files import LayerFiles
from prorl_service.tokens.ledger import Span

log = logging.getLogger(__name__)

BATCH_S = 0.25
"""Seconds for which turns are collected before they are written."""
SAVED_BYTES_PER_S = 10 << 20
"""Bytes of each rollout's sandbox that may be saved in a second, except in a drain."""
MAX_LAYER_BYTES = 4 << 30
"""Largest layer that is kept. A rollout whose sandbox holds more starts from scratch."""


class TurnWriter:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._rows: list[KeptRollout] = []
        self._written: list[Callable[[], object]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Future[None] | None = None

    def add(self, rows: Sequence[KeptRollout], on_written: Callable[[], object]) -> None:
        """Calls `on_written` once the rows are on disk."""
        self._rows += rows
        self._written.append(on_written)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(BATCH_S, self.flush)

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._rows:
            return
        rows, self._rows = self._rows, []
        written, self._written = self._written, []
        # Lost while the disk is full: the rollout then starts from scratch, and no rows pile up.
        self._writing = self._journal.write(partial(turns.keep, rows=rows), is_kept=False)
        self._writing.add_done_callback(partial(_after, written))

    async def note_calls(self, rollout_id: str, turn: int, calls: int) -> None:
        """Returns once the note is on disk, or cannot be written."""
        note = partial(turns.note_calls, rollout_id=rollout_id, turn=turn, calls=calls)
        writing = self._journal.write(note, is_kept=False)
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


class RolloutKeeper:
    """Keeps the turns of one attempt."""

    def __init__(
        self,
        record: RolloutRecord,
        handler: AgentHandler,
        writer: TurnWriter,
        layers: LayerFiles,
        *,
        model: str,
        every_s: float,
        hand_over: Callable[[], Awaitable[None]],
        on_left: Callable[[], object],
    ) -> None:
        """`model`: identity of the one that samples. `every_s`: fewest seconds between two layers
        of the sandbox. `hand_over` is called when the rollout stops, `on_left` when it has."""
        self._record = record
        self._handler = handler
        self._writer = writer
        self._layers = layers
        self.model = model
        self._every_s = every_s
        self._hand_over = hand_over
        self._on_left = on_left
        self._kept = 0
        """Number of turns that are kept or wait in `_rows`."""
        self._lengths: dict[int, int] = {}
        """Ids that each segment had after those turns."""
        self._checksum = 0
        """Checksum of those turns."""
        self._rows: dict[int, bytes] = {}
        """Whole turns that wait for a layer, by number."""
        self._continuation = b""
        self._layer = ""
        self._saved_at = time.monotonic()
        self._saved_bytes = 0
        self._gives_up = handler.restores == "nothing"
        self.leaves = False
        """True if the rollout stops at the end of its turn, to continue in another process."""
        self.has_left = False
        self._run_began_s = 0.0

    def run_begins(self, rollout: RolloutContext) -> None:
        self._run_began_s = rollout.clock.worked_s
        self._saved_at = time.monotonic()

    def went_on(self, rollout: RolloutContext, kept: KeptRollout) -> None:
        """Takes over from an earlier attempt. Does nothing for a replay, which is kept as a whole
        when it is over."""
        if rollout.replay is None:
            self._kept, self._layer = len(kept.turns), kept.layer
            self._checksum = checksum_of(kept.turns)
            self._lengths = {i: len(one.ids) for i, one in enumerate(rollout.ledger.chains)}

    async def sampled(self, rollout: RolloutContext) -> None:
        """Notes that the agent has a turn to act on. Nothing is known to hold what an agent does
        that has the conversation alone."""
        if self._handler.restores == "conversation":
            await self._note_calls(rollout, 1)

    async def calls_begin(self, rollout: RolloutContext, calls: int) -> None:
        if self._handler.restores != "conversation":
            await self._note_calls(rollout, calls)

    async def _note_calls(self, rollout: RolloutContext, calls: int) -> None:
        with rollout.clock.waiting():
            await self._writer.note_calls(rollout.rollout_id, len(rollout.turns) - 1, calls)

    async def keep(self, rollout: RolloutContext, next_prompt: Sequence[int] | None) -> None:
        is_replayed = self._handler.restores == "replay"
        if self._gives_up or (next_prompt is None and not is_replayed):
            return
        if rollout.replay is not None and not rollout.replay.is_over:
            if self.leaves:  # what the replay reads is still kept
                await self._leave(rollout)
            return
        if not rollout.turns:
            return
        self._collect(rollout)
        self._continuation = self._next(rollout, next_prompt).to_bytes()
        if self._handler.restores == "sandbox":
            if not (self.leaves or self._is_due()):
                return
            await self._save_layer(rollout)
        self._write()
        if self.leaves and not self._gives_up:
            await self._leave(rollout)

    def _is_due(self) -> bool:
        pause_s = max(self._every_s, self._saved_bytes / SAVED_BYTES_PER_S)
        return time.monotonic() - self._saved_at >= pause_s

    def _collect(self, rollout: RolloutContext) -> None:
        """Makes kept turns of those since the last call."""
        ledger = rollout.ledger
        for turn in rollout.turns[self._kept :]:
            known = self._lengths.get(turn.segment, 0)
            kept = KeptTurn(
                ledger.before(turn.segment, turn.start)[known:],
                *ledger.sampled(Span(turn.segment, turn.start, turn.stop)),
                turn,
            )
            row = {self._kept: kept.to_bytes()}
            self._rows |= row
            self._checksum = checksum_of(row, self._checksum)
            self._lengths[turn.segment] = len(ledger.before(turn.segment, turn.stop))
            self._kept += 1

    def _next(self, rollout: RolloutContext, next_prompt: Sequence[int] | None) -> Continuation:
        ledger, clock = rollout.ledger, rollout.clock
        return Continuation(
            model=self.model,
            next_prompt=None if next_prompt is None else KeptIds.of(next_prompt, ledger),
            prompt=KeptIds.of(rollout.prompt_ids, ledger),
            first_turn=rollout.first_turn,
            begun_calls=rollout.begun_calls,
            worked_s=self._record.worked_s + clock.worked_s - self._run_began_s,
            kept_at=time.time(),
            agent=self._handler.state(),
            resumed=self._record.resumed,
            kinds=rollout.kinds,
            final_turn=rollout.final_turn,
        )

    async def _save_layer(self, rollout: RolloutContext) -> None:
        """Gives up, for this attempt, if the sandbox cannot be saved."""
        try:
            [sandbox] = rollout.opened
            with rollout.clock.waiting():
                async with sandbox.suspended():
                    layer = await sandbox.save_layer(max_bytes=MAX_LAYER_BYTES)
                self._layer = await asyncio.to_thread(self._layers.save, layer)
            self._record.layers.append(self._layer)
            self._saved_bytes = layer.size_bytes
        except (SandboxError, OSError, ValueError) as error:
            log.info("rollout %s: its turns are not kept: %s", rollout.rollout_id, error)
            self._gives_up = True
        self._saved_at = time.monotonic()

    def _write(self) -> None:
        if self._gives_up:
            return
        row = KeptRollout(
            self._record.rollout_id,
            self._record.attempt,
            self._rows,
            self._continuation,
            self._layer,
        )
        self._rows = {}
        sealed = row.sealed(self._checksum, self._kept)
        self._writer.add([sealed], partial(self._written, self._layer))

    def _written(self, layer: str) -> None:
        """Removes the layers that came before: nothing needs them any more."""
        record = self._record
        if layer in record.layers:
            old = record.layers[: record.layers.index(layer)]
            record.layers = record.layers[len(old) :]
            asyncio.get_running_loop().run_in_executor(None, self._layers.remove, old)

    async def _leave(self, rollout: RolloutContext) -> None:
        """Waits until the service ends."""
        with rollout.clock.waiting():
            await self._writer.settle()
            await self._hand_over()
            self.has_left = True
            self._on_left()
            await asyncio.Event().wait()
