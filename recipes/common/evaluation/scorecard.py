"""The score and what it depends on, for files and for people. Knows no published scores."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

import prorl_service
from prorl_service.client import RolloutClient
from prorl_service.gateway.harnesses import preset, store
from prorl_service.schemas import ErrorInfo
from recipes.common.evaluation.evaluate import Result
from recipes.common.evaluation.pass_at_k import Score, Share
from recipes.common.settings import Evaluation

PASS_AT_1 = "Wilson, 95 %, over instances"
PASS_AT_K = "estimator of Chen et al. 2021; bootstrap, 95 %, over instances"


def facts_of(
    settings: Evaluation, rows: Iterable[BaseModel], url: str, grader: Sequence[str]
) -> dict[str, Any]:
    """Returns all that two verdicts of one evaluation share. `grader`: the modules that decide, as
    globs below the package."""
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
        "options": settings.agent.options,
        "harness": harness_of(settings),
        "image": settings.agent.image,
        "data": settings.data.name,
        "rows": digest([row.model_dump_json() for row in rows]),
        "sandbox": status.sandbox,
        "service": status.version,
        "grader": grader_version(grader),
    }


def harness_of(settings: Evaluation) -> str | None:
    """Returns the preset and its version; None for the agent's own loop."""
    if settings.harness is None:
        return None
    name, version = store.parse(settings.harness)
    packages = preset.load(name, version).install
    version = packages.version or (
        preset.load(packages.tree).install.version if packages.tree else ""
    )
    return f"{name}@{version}" if version else name


def grader_version(globs: Sequence[str]) -> str:
    """Returns the version of this checkout's grader, and a digest of its code."""
    files = [file for glob in globs for file in _sources(glob)]
    return f"{prorl_service.__version__} ({digest([file.read_text() for file in files])})"


def _sources(glob: str) -> list[Path]:
    files = sorted(Path(prorl_service.__file__).parent.glob(glob))
    if not files:  # a digest of nothing would never change
        raise FileNotFoundError(f"no module of prorl_service matches {glob}")
    return files


def digest(texts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def report(
    directory: Path, result: Result, facts: Mapping[str, Any], published: Mapping[str, Any]
) -> None:
    """Writes score.json in `directory`, and prints the score for people."""
    written = json.dumps({**_as_json(result, facts), **published}, indent=2)
    (directory / "score.json").write_text(written + "\n")
    console = Console()
    _show(result, facts, console)
    _show_failures(result.failures, console)


def _as_json(result: Result, facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "score": asdict(result.score),
        "interval": PASS_AT_1,
        "pass_at_k": {k: asdict(share) for k, share in result.pass_at_k.items()},
        "pass_at_k_interval": PASS_AT_K,
        "components": result.components,
        **facts,
    }


def _show(result: Result, facts: Mapping[str, Any], console: Console) -> None:
    scored = result.score
    shown = {
        **{name: _in_short(value) for name, value in facts.items()},
        "instances": f"{scored.instances}, each with {scored.seeds} seeds",
        "by seed": ", ".join(f"{share:.1%}" for share in scored.per_seed),
        "without a verdict": f"{scored.missing}, counted as not solved",
        **{name: f"{mean:.3f}" for name, mean in result.components.items()},
        "pass@1": f"{percent(scored)} % ({PASS_AT_1})",
        **{f"pass@{k}": f"{percent(one)} % ({PASS_AT_K})" for k, one in result.pass_at_k.items()},
    }
    table = Table(box=None, show_header=False)
    for name, value in shown.items():
        table.add_row(name, str(value))
    console.print(table)


def _in_short(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    inner = {name: len(one) if isinstance(one, dict) else one for name, one in value.items()}
    return ", ".join(f"{name} {one}" for name, one in inner.items())


def percent(of: Score | Share) -> str:
    share = of.pass_at_1 if isinstance(of, Score) else of.share
    return f"{100 * share:.1f} ({100 * of.low:.1f} to {100 * of.high:.1f})"


def _show_failures(failures: Sequence[ErrorInfo], console: Console) -> None:
    reasons = Counter(f"{one.kind} ({one.blame.value}): {one.message}" for one in failures)
    for reason, count in reasons.most_common(5):
        console.print(f"{count} without a verdict: {reason}", markup=False)
    if failures:
        console.print("They count as not solved. The same command runs them again.")
