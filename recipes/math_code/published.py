"""The original's published scores for each task, next to a score of ours."""

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from recipes.common.evaluation.evaluate import Result
from recipes.common.evaluation.scorecard import percent
from recipes.common.settings import Evaluation


@dataclass(frozen=True, slots=True)
class Published:
    """`base` and `trained`: percent, read from a curve. `differs`: why no score of ours
    compares."""

    measure: str
    base: float
    trained: float
    differs: str


SOURCE = "ProRL Agent (arXiv 2603.18815), read from its curves; model, seeds and sampling not known"
PUBLISHED = {
    "math": Published("pass@1, AMC", 40, 90, "its problems of AMC are not stated"),
    "code": Published("pass@1, Codeforces", 23, 42, "its problems are in none of the data sets"),
    "stem": Published("mean reward in training, SCP-116K", 20, 65, "its grader is not described"),
}


def as_json(task: str) -> dict[str, Any]:
    if task not in PUBLISHED:
        return {}
    return {"published": asdict(PUBLISHED[task]), "published_source": SOURCE}


def compare(settings: Evaluation, result: Result) -> None:
    known = PUBLISHED.get(settings.agent.name)
    if known is None:
        return
    table = Table("%", "base", "trained", f"pass@1, ours, {settings.data.name}")
    table.add_row(known.measure, f"{known.base:.0f}", f"{known.trained:.0f}", percent(result.score))
    console = Console()
    console.print(table)
    console.print(f"{SOURCE}. Not to be compared: {known.differs}.")
