"""Resuming a rollout whose turns an earlier process has kept. `pipeline.keeping` wrote them.

Called after INIT, in a sandbox in which the agent has not worked yet.
"""

import asyncio
import logging
import time
from functools import partial

from prorl_service.agents.base import AgentHandler, RolloutContext
from prorl_service.agents.kept import Continuation, KeptTurn, rebuilt
from prorl_service.agents.replay import Replay
from prorl_service.errors import SandboxError
from prorl_service.rollouts.journal import Journal, turns
from prorl_service.rollouts.journal.turns import KeptRollout
from prorl_service.rollouts.record import RolloutRecord
from prorl_service.sandbox.layer_files import LayerFiles
from prorl_service.sandbox.layers import Guard, Layer
from prorl_service.schemas import Resumption

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


async def resume(
    record: RolloutRecord,
    handler: AgentHandler,
    rollout: RolloutContext,
    journal: Journal,
    layers: LayerFiles,
    model: str,
) -> KeptRollout | None:
    """Gives the rollout its turns and its sandbox the files of before, and returns what was kept.
    Returns None, and changes nothing, if that is not to be believed, or of another model.

    Raises `SandboxError` if the sandbox cannot take the files.
    """
    try:
        kept = await journal.read(partial(turns.kept, rollout_id=record.rollout_id))
        if kept is None:
            raise ValueError("its kept turns are gone")
        kept.check()
        told = Continuation.model_validate_json(kept.content)
        if told.model != model:
            raise ValueError(f"its kept turns are of {told.model}, and the engines have {model}")
        whole = [KeptTurn.from_bytes(content) for content in kept.turns.values()]
        ledger = rebuilt(whole)
        layer = await asyncio.to_thread(layers.load, kept.layer) if kept.layer else None
    except (ValueError, IndexError, OSError) as error:
        log.warning("rollout %s starts from scratch: %s", record.rollout_id, error)
        return None
    away_s = max(0.0, time.time() - told.kept_at)

    def continued(turn: int, repeated_calls: int = 0) -> None:
        if not turn:  # a replay that ended with its first request
            return
        resumption = Resumption(turn=turn, away_s=away_s, repeated_calls=repeated_calls)
        record.resumed = [*told.resumed, resumption]
        log.info("rollout %s continues after turn %d", record.rollout_id, turn)

    if handler.restores == "replay":
        rollout.replay = Replay(ledger, [one.turn for one in whole], continued)
        return kept
    if layer is not None:
        await _fill(rollout, layer)
    handler.restore(told.agent)
    rollout.ledger, rollout.turns = ledger, [one.turn for one in whole]
    rollout.begun_calls, rollout.first_turn = told.begun_calls, told.first_turn
    rollout.kinds, rollout.final_turn = told.kinds, told.final_turn
    rollout.prompt_ids = told.prompt.within(ledger)
    assert told.next_prompt is not None  # `RolloutKeeper` keeps no other
    rollout.resumed_prompt = told.next_prompt.within(ledger)
    if handler.sandbox_stages and any(turn.tool_calls for turn in rollout.turns):
        rollout.resumed_note = FILES_KEPT if handler.restores == "sandbox" else NOTHING_KEPT
    record.layers = [kept.layer] if layer is not None else []
    record.worked_s = told.worked_s
    continued(len(whole), await _repeated_calls(record, rollout, journal))
    return kept


async def from_scratch(record: RolloutRecord, rollout: RolloutContext, journal: Journal) -> None:
    """Tells a rollout that starts again what calls an attempt before may have made."""
    if calls := await _repeated_calls(record, rollout, journal):
        record.resumed = [Resumption(turn=0, away_s=0.0, repeated_calls=calls)]


async def _repeated_calls(record: RolloutRecord, rollout: RolloutContext, journal: Journal) -> int:
    since = partial(turns.calls_from, rollout_id=record.rollout_id, turn=len(rollout.turns))
    rollout.repeated_calls = await journal.read(since)
    if rollout.repeated_calls:
        rollout.resumed_note += REPEATED
    return rollout.repeated_calls


async def _fill(rollout: RolloutContext, layer: Layer) -> None:
    try:
        [sandbox] = rollout.opened
        await sandbox.restore_layer(layer, Guard())
    except (OSError, ValueError) as error:
        raise SandboxError(f"the sandbox cannot get back what it held: {error}") from error
