"""The offline SWE instances graded: reference patches, a patch that fixes nothing, and cheats."""

import asyncio
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

from bench import result
from prorl_service.rewards.swe import SweReport
from prorl_service.sandbox.base import SandboxProvider
from prorl_service.sandbox.bubblewrap import BubblewrapProvider
from recipes.swebench.cheats import CHEATS
from recipes.swebench.grading import graded
from recipes.swebench.offline import build_all, default_directory
from recipes.swebench.patches import Checkout
from recipes.swebench.rows import SweInstance

NOTHING = {"notes.txt": "I looked at it."}
CHEATED = ("itsdangerous-2.1.0", "mako-1.3.5", "texttable-1.6.4", "tomlkit-0.13.1")


async def measure(row: SweInstance, sandboxes: SandboxProvider) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as directory:
        checkout = Checkout(row, Path(directory))
        started = perf_counter()
        gold = await graded(row, row.patch, sandboxes)
        took_s = perf_counter() - started
        empty = await graded(row, checkout.patch(NOTHING), sandboxes)
        cheats = CHEATS if row.instance_id in CHEATED else {}
        cheated = [
            await graded(row, checkout.patch({**cheat(row), **NOTHING}), sandboxes)
            for cheat in cheats.values()
        ]
    return {
        "instance": row.instance_id,
        "gold_resolved": gold.resolved,
        "empty_resolved": empty.resolved,
        "cheats": _outcomes(list(cheats), cheated),
        "grading_s": round(took_s, 2),
    }


def _outcomes(names: list[str], reports: list[SweReport]) -> dict[str, str]:
    return {name: report.outcome.value for name, report in zip(names, reports, strict=True)}


async def measure_all() -> list[dict[str, object]]:
    sandboxes = BubblewrapProvider()
    return [await measure(row, sandboxes) for row in build_all(default_directory())]


def main() -> None:
    rows = asyncio.run(measure_all())
    cheats = [how for row in rows for how in dict(row["cheats"]).values()]  # type: ignore[call-overload]
    headline = {
        "instances": len(rows),
        "gold_resolved": sum(bool(row["gold_resolved"]) for row in rows),
        "empty_resolved": sum(bool(row["empty_resolved"]) for row in rows),
        "cheats_tried": len(cheats),
        "cheats_resolved": cheats.count("resolved"),
        "grading_s_per_instance_p50": median(float(str(row["grading_s"])) for row in rows),
    }
    result.write("swe_offline", rows, headline)


if __name__ == "__main__":
    main()
