"""The pipeline's side of resuming: rollouts are saved, restored, handed over and forgotten here."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from prorl_service.agents.base import AgentHandler
from prorl_service.attempt import Attempt
from prorl_service.errors import SandboxError
from prorl_service.resume import rows
from prorl_service.resume.files import HandoverFiles, LayerFiles
from prorl_service.resume.rows import SavedRollout
from prorl_service.resume.saving import AttemptSaver, TurnWriter
from prorl_service.resume.turns import Continuation, SavedTurn, rebuilt
from prorl_service.rollouts.journal import Journal
from prorl_service.rollouts.record import RolloutRecord
from prorl_service.sandbox.layers import Guard, Layer
from prorl_service.schemas import Resumption, Turn, contents_of
from prorl_service.tokens.ledger import Ledger
from prorl_service.tokens.replay import TurnReplay, of_rollout

log = logging.getLogger(__name__)

FILES_KEPT = (
    "[the sandbox was restarted before this call: files are as they were; the shell, its working"
    " directory and variables, kernels and other processes are new]\n"
)
NOTHING_KEPT = (
    "[the sandbox was replaced before this call: files, variables and processes of before are"
    " gone]\n"
)
REPEATED = (
    "[an interruption came before this call: calls from here on may have been made once already,"
    " with effects outside the sandbox; sessions with servers are new]\n"
)


class Resumer:
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
        self._layer_files = LayerFiles(Path(f"{journal.path}.layers"))
        self._save_every_s = save_every_s
        self._on_left = on_left
        self._handover = None if shared is None else HandoverFiles(shared, self._layer_files)
        self._savers: dict[RolloutRecord, AttemptSaver] = {}

    async def tidy(self) -> None:
        """Removes files that no rollout needs. Call it before any work begins."""
        if self._journal.path is not None:
            needed = await self._journal.read(rows.layers)
            await asyncio.to_thread(self._layer_files.remove_all_but, needed)
        if self._handover is not None:
            await asyncio.to_thread(self._handover.tidy)

    # --- save -----------------------------------------------------------------------------------

    def save(
        self, record: RolloutRecord, handler: AgentHandler, attempt: Attempt, model: str
    ) -> None:
        """Saves the turns of an attempt from now on, which the model with this identity samples."""
        if self._journal.path is not None:
            attempt.saver = self._savers[record] = AttemptSaver(
                record,
                handler,
                attempt,
                self._writer,
                self._layer_files,
                model=model,
                every_s=self._save_every_s,
                leave=self._left,
            )

    def flush(self) -> None:
        self._writer.flush()

    # --- restore --------------------------------------------------------------------------------

    async def restore(self, record: RolloutRecord) -> None:
        """Gives an attempt, after its INIT and in a sandbox in which the agent has not worked yet,
        what an earlier process saved. Raises `SandboxError`."""
        saver = self._savers.get(record)
        if saver is None:  # the journal is in memory
            return
        if saver.handler.restores != "nothing":
            if not record.has_saved_turns:
                await self._take_over(record)
            found = await self._believed(saver) if record.has_saved_turns else None
            if found is not None:
                await self._continue(saver, found)
                return
        if record.has_saved_turns:
            self._drop(record)
        if record.attempt > 1 and (calls := await self._repeated_calls(saver.attempt)):
            record.resumed = [Resumption(turn=0, away_s=0.0, repeated_calls=calls)]

    async def _believed(self, saver: AttemptSaver) -> "_Found | None":
        """Returns what was saved; None if it is not to be believed, or of another model."""
        rollout_id = saver.record.rollout_id
        try:
            row = await self._journal.read(rows.saved, rollout_id)
            if row is None:
                raise ValueError("its kept turns are gone")
            row.check()
            told = Continuation.model_validate_json(row.content)
            if told.model != saver.model:
                raise ValueError(
                    f"its kept turns are of {told.model}, and the engines have {saver.model}"
                )
            turns = [SavedTurn.from_bytes(content) for content in row.turns.values()]
            ledger, load = rebuilt(turns), self._layer_files.load
            layer = await asyncio.to_thread(load, row.layer) if row.layer else None
            return _Found(row, told, [one.turn for one in turns], ledger, layer)
        except (ValueError, IndexError, OSError) as error:
            log.warning("rollout %s starts from scratch: %s", rollout_id, error)
            return None

    async def _continue(self, saver: AttemptSaver, found: "_Found") -> None:
        """Gives the rollout its turns, and its sandbox the files of before. Raises
        `SandboxError`."""
        record, handler, attempt, told = saver.record, saver.handler, saver.attempt, found.told
        away_s = max(0.0, time.time() - told.kept_at)

        def continued(turn: int, repeated_calls: int = 0) -> None:
            if not turn:  # a replay that ended with its first request
                return
            resumption = Resumption(turn=turn, away_s=away_s, repeated_calls=repeated_calls)
            record.resumed = [*told.resumed, resumption]
            log.info("rollout %s continues after turn %d", record.rollout_id, turn)

        attempt.sampled.pictures |= contents_of(found.turns)
        if handler.restores == "replay":
            attempt.replay = TurnReplay(of_rollout(found.ledger, found.turns), continued)
            return
        attempt.replay = None
        if found.layer is not None:
            await _fill(attempt, found.layer)
            saver.layers = [found.row.layer]
        handler.restore(told.agent)
        attempt.continue_from(found.ledger, found.turns, told.kinds)
        attempt.begun_calls, attempt.first_turn = told.begun_calls, told.first_turn
        attempt.final_turn = told.final_turn
        attempt.prompt_ids = told.prompt.within(found.ledger)
        assert told.next_prompt is not None  # `AttemptSaver` saves no other
        attempt.resumed_prompt = told.next_prompt.within(found.ledger)
        if handler.sandbox_stages and any(turn.tool_calls for turn in found.turns):
            attempt.resumed_note = FILES_KEPT if handler.restores == "sandbox" else NOTHING_KEPT
        record.worked_s = told.worked_s
        saver.continue_from(found.row)
        continued(len(found.turns), await self._repeated_calls(attempt))

    async def _repeated_calls(self, attempt: Attempt) -> int:
        attempt.repeated_calls = await self._journal.read(
            rows.calls_from, attempt.rollout_id, len(attempt.turns)
        )
        if attempt.repeated_calls:
            attempt.resumed_note += REPEATED
        return attempt.repeated_calls

    # --- hand over ------------------------------------------------------------------------------

    def hand_over(self) -> None:
        """Has rollouts stop at the end of their turn, and hands over those that a front could give
        to another service."""
        for saver in self._savers.values():
            saver.must_leave = True

    def count_left(self, running: Iterable[RolloutRecord]) -> int:
        """Number of rollouts that have stopped so."""
        savers = (self._savers.get(record) for record in running)
        return sum(saver is not None and saver.has_left for saver in savers)

    async def _left(self, record: RolloutRecord) -> None:
        if self._handover is not None and record.group.owner:
            found = await self._journal.read(rows.saved, record.rollout_id)
            try:
                if found is not None:
                    await asyncio.to_thread(self._handover.give, record.group, found)
            except OSError as error:
                log.warning("rollout %s is not handed over: %s", record.rollout_id, error)
        self._savers[record].has_left = True
        self._on_left()

    async def _take_over(self, record: RolloutRecord) -> None:
        """Gives the rollout the turns that another service has handed over."""
        group = record.group
        if self._handover is None or not group.owner:
            return
        taken = await asyncio.to_thread(
            self._handover.take, group, record.rollout_id, record.attempt
        )
        if taken is not None:
            await self._journal.write(rows.save, [taken])
            record.has_saved_turns = True

    # --- forget ---------------------------------------------------------------------------------

    def forget(self, record: RolloutRecord, *, starts_over: bool = False) -> None:
        """Forgets a rollout that has ended, and removes its files; its end in the journal deletes
        its turns. With `starts_over`, it begins again from scratch, and its turns go now."""
        saver = self._savers.pop(record, None)
        self._writer.flush()  # turns that wait must not be written after those of the next attempt
        if saver is not None and saver.layers:
            names, saver.layers = saver.layers, []
            asyncio.get_running_loop().run_in_executor(None, self._layer_files.remove, names)
        if starts_over:
            self._drop(record)

    def _drop(self, record: RolloutRecord) -> None:
        record.resumed, record.worked_s, record.has_saved_turns = [], 0.0, False
        self._journal.write(rows.drop, record.rollout_id)


@dataclass(frozen=True, slots=True)
class _Found:
    row: SavedRollout
    told: Continuation
    turns: list[Turn]
    ledger: Ledger
    layer: Layer | None
    """What the sandbox held; None if it is not needed."""


async def _fill(attempt: Attempt, layer: Layer) -> None:
    try:
        [sandbox] = attempt.opened
        await sandbox.restore_layer(layer, Guard())
    except (OSError, ValueError) as error:
        raise SandboxError(f"the sandbox cannot get back what it held: {error}") from error
