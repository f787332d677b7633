"""Scores a model: `python -m recipes.swebench.evaluate model=qwen3_8b engines=[http://gpu1:8000]`.

Prints pass@1 over seeds with an interval, and what such a number depends on: sampling and thinking,
budgets, data and images, grader. score.json keeps all of it, `rollouts` the service's account of
each rollout. Started again, it continues where it was.
"""

from collections.abc import Sequence

from omegaconf import DictConfig

from recipes.common.data import rows as data_rows
from recipes.common.entry import command
from recipes.common.evaluation.evaluate import evaluate
from recipes.common.evaluation.scorecard import facts_of, report
from recipes.common.records import begin
from recipes.common.settings import Evaluation
from recipes.common.training import launch
from recipes.swebench import scorecard, tasks
from recipes.swebench.rows import SweInstance


@command(
    Evaluation,
    "swebench_evaluate",
    tasks.of,
    "model=tiny",
    "model=qwen3_8b engines=[http://gpu1:8000]",
)
def main(settings: Evaluation, config: DictConfig) -> None:
    rows = tasks.rows_of(settings)
    chosen = data_rows.chosen(settings.data, rows)
    begin(config)
    with launch.evaluating(
        settings, tasks.tasks_of(settings, chosen), lambda: tasks.tiny_model(settings, rows)
    ) as url:
        _score(settings, chosen, url)


def _score(settings: Evaluation, rows: Sequence[SweInstance], url: str) -> None:
    """Raises `ProRLError`."""
    facts = facts_of(settings, rows, url, scorecard.GRADER)
    facts["images"] = scorecard.images(rows, settings.data.rows.with_name("manifest.json"))
    result = evaluate(settings, tasks.tasks_of(settings, rows), facts, url)
    report(settings.output, result, facts, scorecard.published())
    scorecard.compare(settings, result)


if __name__ == "__main__":
    main()
