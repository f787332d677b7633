"""Resuming a rollout whose turns an earlier process has kept. `pipeline.keeping` wrote them.

Called after INIT, in a sandbox in which the agent has not worked yet.
"""

import asyncio
import logging
import time
from array import array
from functools import partial

from prorl_service.agents.base import AgentHandler, RolloutContext
from prorl_service.agents.kept import KeptTurn, rebuilt
from prorl_service.agents.replay import Replay
from prorl_service.errors import SandboxError
from prorl_service.rollouts.journal import Journal, turns
from prorl_service.rollouts.record import RolloutRecord
from prorl_service.sandbox.layer_files import LayerFiles
from prorl_service.sandbox.layers import Guard, Layer
from prorl_service.schemas import Resumption
from prorl_service.tokens.ledger import Ledger

log = logging.getLogger(__name__)

FILES_KEPT = (
    "[the sandbox was restarted before this call: files are as they were; the shell, its working"
    " directory and variables, kernels and other processes are new]\n"
)
NOTHING_KEPT = (
    "[the sandbox was replaced before this call: files, variables and processes of before are"
    " gone]\n"
)


async def resume(
    record: RolloutRecord,
    handler: AgentHandler,
    rollout: RolloutContext,
    journal: Journal,
    layers: LayerFiles,
) -> "tuple[array[int], str] | None":
    """Gives the rollout its turns and its sandbox the files of before. Returns the next prompt and
    the name of the layer; None, and changes nothing, if the turns cannot be used.

    Raises `SandboxError` if the sandbox cannot take the files.
    """
    rows = await journal.read(partial(turns.kept, rollout_id=record.rollout_id))
    ledger = Ledger()
    try:
        kept = [KeptTurn.from_bytes(row.content) for row in rows]
        next_prompt = rebuilt(kept, ledger)
        layer = await asyncio.to_thread(layers.load, rows[-1].layer) if rows[-1].layer else None
    except (ValueError, IndexError, OSError) as error:
        log.warning("rollout %s starts from scratch: %s", record.rollout_id, error)
        return None
    last = kept[-1].state
    away_s = max(0.0, time.time() - last.kept_at)

    def continued(turn: int) -> None:
        if not turn:  # a replay that ended with its first request
            return
        record.resumed = [*last.resumed, Resumption(turn=turn, away_s=away_s)]
        log.info("rollout %s continues after turn %d", record.rollout_id, turn)

    if handler.restores == "replay":
        rollout.replay = Replay(ledger, [one.state.turn for one in kept], continued)
        return array("i"), ""
    if layer is not None:
        await _fill(rollout, layer)
    handler.restore(last.agent)
    rollout.ledger, rollout.turns = ledger, [one.state.turn for one in kept]
    rollout.begun_calls = last.begun_calls
    rollout.resumed_prompt = next_prompt
    rollout.resumed_note = FILES_KEPT if handler.restores == "sandbox" else NOTHING_KEPT
    rollout.prompt_ids = ledger.chains[-1].ids[: ledger.chains[-1].prompt_len]
    record.layers = [rows[-1].layer] if layer is not None else []
    record.worked_s = last.worked_s
    continued(len(kept))
    return next_prompt, rows[-1].layer


async def _fill(rollout: RolloutContext, layer: Layer) -> None:
    try:
        [sandbox] = rollout.opened
        await sandbox.restore_layer(layer, Guard())
    except (OSError, ValueError) as error:
        raise SandboxError(f"the sandbox cannot get back what it held: {error}") from error
