"""General cheats on all offline SWE instances: how many our grader takes for a fix.

General cheats (`bench.swe_general.adversarial_patches`) know pytest and unittest but not the
grader; selectors (`bench.swe_general.selectors`) choose which failures to swallow. The reference
patch and one that fixes nothing are graded too. Takes two hours on two cores. Given names, such as
`'general: strip assertions'`, it grades only those, and keeps the other rows of the last run.
"""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench import result
from bench.swe_general.adversarial_patches import GENERAL
from bench.swe_general.selectors import SELECTORS
from prorl_service.rewards.swe.grade import SweReport
from prorl_service.sandbox.kinds.bubblewrap import BubblewrapProvider
from recipes.swebench.grading import graded
from recipes.swebench.offline import build_all, default_directory
from recipes.swebench.patches import NOTHING, NOTHING_PATCH, Checkout
from recipes.swebench.rows import SweInstance

AT_ONCE = 3
CHEATS = {**GENERAL, **SELECTORS}


def patches(row: SweInstance) -> dict[str, str]:
    """Returns the patches to grade, keyed by name."""
    with TemporaryDirectory() as directory:
        checkout = Checkout(row, Path(directory))
        cheats = {name: checkout.patch({**cheat(row), **NOTHING}) for name, cheat in CHEATS.items()}
    return {"reference": row.patch, "nothing": NOTHING_PATCH, **cheats}


async def grade_all(rows: Sequence[SweInstance], only: Sequence[str]) -> dict[str, list[SweReport]]:
    """Returns the reports of each patch, keyed by its name."""
    free = asyncio.Semaphore(AT_ONCE)
    reports: dict[str, list[SweReport]] = {}
    async with BubblewrapProvider() as sandboxes:

        async def one(row: SweInstance, patch: str) -> SweReport:
            async with free:
                return await graded(row, patch, sandboxes)

        for row in rows:
            named = patches(row)
            named = {name: named[name] for name in only or named}
            done = await asyncio.gather(*(one(row, patch) for patch in named.values()))
            for name, report in zip(named, done, strict=True):
                reports.setdefault(name, []).append(report)
            print(f"graded {row.instance_id}", flush=True)
    return reports


def of_patch(name: str, reports: Sequence[SweReport]) -> dict[str, object]:
    outcomes = Counter(report.outcome.value for report in reports)
    return {
        "patch": name,
        "instances": len(reports),
        "resolved": sum(report.resolved for report in reports),
        "outcomes": ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common()),
        "where": [report.instance_id for report in reports if report.resolved and name in CHEATS],
    }


def earlier() -> dict[str, Mapping[str, Any]]:
    """Returns the rows of the last run, keyed by the patch's name."""
    rows: list[dict[str, Any]] = json.loads((result.RESULTS / "swe_general.json").read_text())[
        "rows"
    ]
    return {row["patch"]: row for row in rows}


def main() -> None:
    only = sys.argv[1:]
    rows = build_all(default_directory())
    table = earlier() if only else {}
    for name, reports in asyncio.run(grade_all(rows, only)).items():
        table[name] = of_patch(name, reports)
    cheats = [table[name] for name in GENERAL]
    selectors = [table[name] for name in SELECTORS]
    headline = {
        "instances": len(rows),
        "reference_resolved": table["reference"]["resolved"],
        "nothing_resolved": table["nothing"]["resolved"],
        "general_cheats": len(GENERAL),
        "general_cheats_tried": sum(row["instances"] for row in cheats),
        "general_cheats_resolved": sum(row["resolved"] for row in cheats),
        "swe_selectors_tried": sum(row["instances"] for row in selectors),
        "swe_selectors_resolved": sum(row["resolved"] for row in selectors),
    }
    result.write("swe_general", list(table.values()), headline)


if __name__ == "__main__":
    main()
