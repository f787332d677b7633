"""Cost of keeping turns: CPU time of a turn with and without, and the time to save what a
sandbox holds."""

import asyncio
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import ClassVar

from bench.load import contenders, ours
from bench.load.agent import LoadAgent
from bench.tools import rungs
from prorl_service import local
from prorl_service.agents.base import Restores
from prorl_service.client import RolloutClient
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.pipeline.keeping import MAX_LAYER_BYTES
from prorl_service.sandbox.layer_files import LayerFiles

AT_ONCE = 64
BATCHES = 4
LATENCY_MS = 100
VOCAB_SIZE = 1024
SAVINGS = 20
FILES, FILE_KB = 50, 40
"""Contents of a sandbox when it is saved: 2 MB."""
WRITE = f"for i in $(seq {FILES}); do head -c {FILE_KB}K /dev/urandom > $i; done"
SAVED = {
    "ours, bubblewrap": "saving of 50 files, 2 MB, in bubblewrap",
    "ours, apptainer SIF": "saving of 50 files, 2 MB, on a SIF",
}

Row = dict[str, object]


class KeepsTurns(LoadAgent):
    """The agent of the load, with each turn written when it is whole."""

    restores: ClassVar[Restores] = "conversation"


AGENTS: dict[str, type[LoadAgent]] = {"without_ms": LoadAgent, "kept_ms": KeepsTurns}


def cpu(directory: Path, rounds: int) -> list[Row]:
    """Returns the CPU milliseconds of a turn of each agent, each round and the medians last."""
    model = directory / "model"
    build_tiny_model(model, vocab_size=VOCAB_SIZE)
    rows: list[Row] = []
    for number in range(rounds):
        took = {
            name: _cpu_ms(directory / f"{name}{number}", model, agent)
            for name, agent in AGENTS.items()
        }
        rows.append(_row(f"CPU of a turn, round {number + 1}", took))
        print(rows[-1], flush=True)
    medians = {name: median(float(str(row[name])) for row in rows) for name in AGENTS}
    return [*rows, _row("CPU of a turn, median", medians)]


def _row(what: str, took_ms: dict[str, float]) -> Row:
    ratio = took_ms["kept_ms"] / took_ms["without_ms"]
    rounded = {name: round(ms, 3) for name, ms in took_ms.items()}
    return {"what": what, **rounded, "ratio": round(ratio, 3)}


def _cpu_ms(directory: Path, model: Path, agent: type[LoadAgent]) -> float:
    directory.mkdir()
    options = [
        *("--agent", f"{agent.__module__}:{agent.__qualname__}"),
        *("--sandbox", "process", "--run-workers", str(AT_ONCE)),
        *("--journal", str(directory / "journal.sqlite")),
    ]
    kind = ours.Kind("process")
    with (
        contenders.engine(model, LATENCY_MS) as engine,
        local.service([engine], log=directory / "service.log", options=options) as service,
        RolloutClient(service.url) as client,
    ):
        ours.run(client, kind, AT_ONCE)
        return ours.turn_cpu_ms(client, kind, service.pid, AT_ONCE, BATCHES)


async def savings(directory: Path) -> list[Row]:
    """Returns the milliseconds to save a sandbox of 2 MB, of each kind that can be saved."""
    rows: list[Row] = []
    async with rungs.all_rungs() as kinds:
        for rung in kinds:
            if rung.name in SAVED:
                took_ms = await _saving_ms(LayerFiles(directory), rung)
                p50_ms, most_ms = round(median(took_ms), 1), round(max(took_ms), 1)
                rows.append({"what": SAVED[rung.name], "p50_ms": p50_ms, "most_ms": most_ms})
                print(rows[-1], flush=True)
    return rows


async def _saving_ms(layers: LayerFiles, rung: rungs.Rung) -> list[float]:
    took_ms = []
    async with rungs.running(rung) as sandbox:
        await rungs.tool(sandbox, "bash", "command")(WRITE)
        for _ in range(SAVINGS):
            began = perf_counter()
            async with sandbox.suspended():
                layer = await sandbox.save_layer(max_bytes=MAX_LAYER_BYTES)
            name = await asyncio.to_thread(layers.save, layer)
            took_ms.append(1e3 * (perf_counter() - began))
            layers.remove([name])
    return took_ms
