"""What a score depends on, and how it compares with what was published. Runs nothing."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import prorl_service
from prorl_service.client import RolloutClient
from recipes.common.scores import Score
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
GRADER = ("rewards/swe*.py", "agents/swe*.py")
"""What decides about a patch, below the package."""


def facts(settings: Evaluation, rows: Sequence[SweInstance], url: str) -> dict[str, Any]:
    """All that must be the same for two verdicts to be of one evaluation."""
    with RolloutClient(url) as client:
        status = client.status()
    return {
        "model": settings.model.path or settings.model.name,
        "revision": settings.model.revision,
        "engines": sorted({backend.model for backend in status.backends}),
        "policy_version": status.policy_version,
        "thinking": settings.model.thinking,
        "sampling": settings.sampling.model_dump(),
        "max_model_len": sorted({backend.max_model_len for backend in status.backends}),
        "limits": settings.agent.limits.model_dump(),
        "data": settings.data.name,
        "rows": _digest([row.model_dump_json() for row in rows]),
        "images": images(rows, settings.data.rows.with_name("manifest.json")),
        "sandbox": status.sandbox,
        "service": status.version,
        "grader": grader(),
    }


def images(rows: Sequence[SweInstance], manifest: Path) -> dict[str, Any]:
    """By kind how many; the digest of all names; those digests that `prepare` has written down."""
    names = sorted({row.environment.archive or row.image or "none" for row in rows})
    known = json.loads(manifest.read_text()).get("images", {}) if manifest.exists() else {}
    return {
        "archives": sum(name.startswith("sha256:") for name in names),
        "images": len({row.image for row in rows if row.image}),
        "names": _digest(names),
        "digests": known,
    }


def grader() -> str:
    """The version, and a digest of the code, of this checkout's grader."""
    package = Path(prorl_service.__file__).parent
    sources = [file.read_text() for glob in GRADER for file in sorted(package.glob(glob))]
    return f"{prorl_service.__version__} ({_digest(sources)})"


def _digest(texts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def as_json(scored: Score, facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "score": asdict(scored),
        "interval": "Wilson, 95 %, over instances",
        "published": {name: list(row) for name, row in PUBLISHED.items()},
        "published_source": SOURCE,
        **facts,
    }


def show(settings: Evaluation, scored: Score, facts: dict[str, Any], console: Console) -> None:
    table = Table(box=None, show_header=False)
    shown = {
        **{name: value for name, value in facts.items() if name not in ("images", "limits")},
        "limits": _short(facts["limits"]),
        "sampling": _short(facts["sampling"]),
        "images": _short({**facts["images"], "digests": len(facts["images"]["digests"])}),
        "instances": f"{scored.instances}, each with {scored.seeds} seeds",
        "by seed": ", ".join(f"{share:.1%}" for share in scored.per_seed),
        "without a verdict": f"{scored.missing}, counted as not resolved",
        "pass@1": f"{scored.pass_at_1:.1%}, {scored.low:.1%} to {scored.high:.1%} (Wilson, 95 %)",
    }
    for name, value in shown.items():
        table.add_row(name, str(value))
    console.print(table)
    console.print(_comparison(settings, scored))
    console.print(SOURCE)
    if settings.data.name != "verified":
        console.print(f"Ours is on {settings.data.name}: not to be compared with these.")


def _comparison(settings: Evaluation, scored: Score) -> Table:
    table = Table("pass@1, %", "SkyRL, trained", "base", "trained", f"ours, {settings.data.name}")
    for name, (model, skyrl, base, trained) in PUBLISHED.items():
        published = ["-" if value is None else f"{value:.1f}" for value in (skyrl, base, trained)]
        table.add_row(model, *published, _ours(scored) if name == settings.model.name else "")
    if settings.model.name not in PUBLISHED:
        table.add_row(settings.model.name, "", "", "", _ours(scored))
    return table


def _ours(scored: Score) -> str:
    percent = (100 * share for share in (scored.pass_at_1, scored.low, scored.high))
    return "{:.1f} ({:.1f} to {:.1f})".format(*percent)


def _short(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
