"""Cost of keeping turns: CPU time of a turn with and without, and the time to save what a
sandbox holds."""

import asyncio
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import ClassVar

from bench import frame
from bench.load.agent import LoadAgent
from bench.load.ours import turn_ms
from bench.tools import rungs
from prorl_service.agents.base import Restores
from prorl_service.resume.files import LayerFiles
from prorl_service.resume.saving import MAX_LAYER_BYTES
from tests.sandbox.sandboxes import running

ROUNDS, LATENCY_MS = 5, 100
SAVINGS, QUICK_SAVINGS = 20, 2
FILES, FILE_KB = 50, 40
"""Contents of a sandbox when it is saved: 2 MB."""
WRITE = f"for i in $(seq {FILES}); do head -c {FILE_KB}K /dev/urandom > $i; done"


class KeepsTurns(LoadAgent):
    """The agent of the load, with each turn written when it is whole."""

    restores: ClassVar[Restores] = "conversation"


def cpu(quick: bool) -> frame.Found:
    with TemporaryDirectory() as name:
        agents = (LoadAgent, KeepsTurns)
        ways = {agent.__name__: partial(_turn_ms, Path(name), agent) for agent in agents}
        took = frame.alternate(ways, 1 if quick else ROUNDS)
    without, kept = map(median, took.values())
    row = {"what": "CPU of a turn, median", "without_ms": without, "kept_ms": kept}
    return frame.Found([row], {"cpu_ratio": round(kept / without, 3)})


def _turn_ms(directory: Path, agent: type[LoadAgent], number: int) -> float:
    return turn_ms(directory / f"{agent.__name__}{number}", latency_ms=LATENCY_MS, agent=agent)


def saving(quick: bool) -> frame.Found:
    with TemporaryDirectory() as name:
        took_ms = asyncio.run(_savings_ms(Path(name), QUICK_SAVINGS if quick else SAVINGS))
    row = {
        "what": "saving of 50 files, 2 MB, in bubblewrap",
        "p50_ms": round(median(took_ms), 1),
        "most_ms": round(max(took_ms), 1),
    }
    return frame.Found([row], {"snapshot_ms_p50": row["p50_ms"]})


async def _savings_ms(directory: Path, times: int) -> list[float]:
    """Returns the milliseconds to save a sandbox of 2 MB, each time."""
    took_ms, layers = [], LayerFiles(directory)
    async with running("bubblewrap", rungs.LIMITS) as sandbox:
        await rungs.tool(sandbox, "bash", "command")(WRITE)
        for _ in range(times):
            began = perf_counter()
            async with sandbox.suspended():
                layer = await sandbox.save_layer(max_bytes=MAX_LAYER_BYTES)
            name = await asyncio.to_thread(layers.save, layer)
            took_ms.append(1e3 * (perf_counter() - began))
            layers.remove([name])
    return took_ms
