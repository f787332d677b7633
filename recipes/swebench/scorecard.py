"""The images that a score depends on, and how it compares with what was published. Runs nothing."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from recipes.common.evaluation.evaluate import Result
from recipes.common.evaluation.scorecard import digest, percent
from recipes.common.settings import Evaluation
from recipes.swebench.rows import SweInstance

PUBLISHED = {
    "qwen3_4b": ("Qwen3-4B-Instruct-2507", None, 14.8, 21.2),
    "qwen3_8b": ("Qwen3-8B", 9.4, 9.6, 18.0),
    "qwen3_14b": ("Qwen3-14B", 21.6, 15.4, 23.6),
}
"""Model; SkyRL-Agent-v0 after training; ProRL Agent before and after. Percent."""
SOURCE = (
    "Published: Pass@1 on SWE-Bench Verified by ProRL Agent (arXiv 2603.18815), base models as its "
    "authors ran them; seeds, sampling and budgets are not published."
)
GRADER = ("rewards/swe/*.py", "agents/swe/*.py")
"""Modules that decide about a patch, below the package."""


def images(rows: Sequence[SweInstance], manifest: Path) -> dict[str, Any]:
    """Counts images by kind; adds the digest of all names, and the digests that `prepare`
    recorded."""
    names = sorted({row.environment.archive or row.image or "none" for row in rows})
    known = json.loads(manifest.read_text()).get("images", {}) if manifest.exists() else {}
    return {
        "archives": sum(name.startswith("sha256:") for name in names),
        "images": len({row.image for row in rows if row.image}),
        "names": digest(names),
        "digests": known,
    }


def published() -> dict[str, Any]:
    return {
        "published": {name: list(row) for name, row in PUBLISHED.items()},
        "published_source": SOURCE,
    }


def compare(settings: Evaluation, result: Result) -> None:
    console = Console()
    table = Table("pass@1, %", "SkyRL, trained", "base", "trained", f"ours, {settings.data.name}")
    ours = percent(result.score)
    for name, (model, skyrl, base, trained) in PUBLISHED.items():
        row = ["-" if value is None else f"{value:.1f}" for value in (skyrl, base, trained)]
        table.add_row(model, *row, ours if name == settings.model.name else "")
    if settings.model.name not in PUBLISHED:
        table.add_row(settings.model.name, "", "", "", ours)
    console.print(table)
    console.print(SOURCE)
    if settings.data.name != "verified":
        console.print(f"Ours is on {settings.data.name}: not to be compared with these.")
