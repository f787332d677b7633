"""General cheats on all offline SWE instances: how many our grader takes for a fix. Two hours.

General cheats know pytest and unittest but not the grader; selectors choose which failures to
swallow (`tests.recipes.swebench.cheats`). The reference patch and one that fixes nothing are graded
too.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import frame
from bench.swe_offline import grade_all, instances
from prorl_service.rewards.swe.grade import SweReport
from prorl_service.sandbox.kinds.bubblewrap import BubblewrapProvider
from recipes.swebench.grading import graded
from recipes.swebench.patches import NOTHING, NOTHING_PATCH, Checkout
from recipes.swebench.rows import SweInstance
from tests.recipes.swebench.cheats import GENERAL, SELECTORS, Cheat

AT_ONCE = 3
CHEATS = {**GENERAL, **SELECTORS}


def patches(row: SweInstance, cheats: Mapping[str, Cheat]) -> dict[str, str]:
    """Returns the patches to grade, keyed by name."""
    with TemporaryDirectory() as directory:
        checkout = Checkout(row, Path(directory))
        tried = {name: checkout.patch({**cheat(row), **NOTHING}) for name, cheat in cheats.items()}
    return {"reference": row.patch, "nothing": NOTHING_PATCH, **tried}


async def grade(row: SweInstance, _: str, patch: str, sandboxes: BubblewrapProvider) -> SweReport:
    return await graded(row, patch, sandboxes)


def measure(quick: bool) -> frame.Found:
    rows = instances(quick)
    cheats = dict(list(CHEATS.items())[:2]) if quick else CHEATS
    reports = asyncio.run(grade_all(rows, lambda row: patches(row, cheats), grade, AT_ONCE))
    table: dict[str, frame.Row] = {
        name: {
            "patch": name,
            "instances": len(own),
            "resolved": sum(report.resolved for report in own),
            "outcomes": _outcomes(own),
        }
        for name, own in reports.items()
    }
    headline = {
        "instances": len(rows),
        "reference_resolved": table["reference"]["resolved"],
        "nothing_resolved": table["nothing"]["resolved"],
        "general_cheats": len(GENERAL),
        **_tally("general_cheats", [row for name, row in table.items() if name in GENERAL]),
        **_tally("swe_selectors", [row for name, row in table.items() if name in SELECTORS]),
    }
    return frame.Found([*table.values()], headline)


def _outcomes(reports: Sequence[SweReport]) -> str:
    counts = Counter(report.outcome.value for report in reports)
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())


def _tally(prefix: str, rows: Sequence[frame.Row]) -> frame.Row:
    tried, resolved = (sum(row[column] for row in rows) for column in ("instances", "resolved"))
    return {f"{prefix}_tried": tried, f"{prefix}_resolved": resolved}


if __name__ == "__main__":
    frame.run("swe_general", {"swe_general": measure})
