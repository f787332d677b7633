"""Scores a model: `python -m recipes.swebench.evaluate model=qwen3_8b engines=[http://gpu1:8000]`.

Pass@1 over seeds with an interval, and beside it what such a number depends on: sampling and
thinking, budgets, data and images, grader. Printed, and kept in score.json; the service's account
of each rollout is in `rollouts`. Started again, it goes on where it was.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import hydra
from omegaconf import DictConfig
from rich.console import Console

from prorl_service.schemas import ErrorInfo
from recipes.common import checks, evaluation, serving
from recipes.common.run import begin, known_errors
from recipes.common.scores import score
from recipes.common.settings import Evaluation, settings_of
from recipes.swebench import scorecard, tasks
from recipes.swebench.rows import SweInstance


@hydra.main(version_base="1.3", config_path="../../configs", config_name="swebench_evaluate")  # type: ignore[untyped-decorator]
def main(config: DictConfig) -> None:
    with known_errors():
        settings = settings_of(Evaluation, config)
        rows = tasks.rows_of(settings)
        chosen = tasks.chosen(settings, rows)
        checks.check_engines(settings, brought=False)
        checks.check_sandbox(settings)
        checks.check_images(settings, tasks.tasks_of(settings, chosen))
        checks.check_service(settings, brought=False)
        begin(config)
        # An engine that is not started here has its model.
        model = tasks.tiny_model(settings, rows) if settings.model.warm_start else Path()
        with serving.service(settings, model, brought=False) as url:
            evaluate(settings, chosen, url, Console())


def evaluate(settings: Evaluation, rows: Sequence[SweInstance], url: str, console: Console) -> None:
    """Raises `ProRLError`."""
    facts = scorecard.facts(settings, rows, url)
    records = evaluation.Records(settings.output, facts)
    failures = evaluation.run(settings, tasks.tasks_of(settings, rows), records, url)
    scored = score(
        {
            row.instance_id: [
                records.verdict(row.instance_id, seed) for seed in range(settings.seeds)
            ]
            for row in rows
        }
    )
    result = json.dumps(scorecard.as_json(scored, facts), indent=2)
    (settings.output / "score.json").write_text(result + "\n")
    scorecard.show(settings, scored, facts, console)
    _show_failures(failures, console)


def _show_failures(failures: Sequence[ErrorInfo], console: Console) -> None:
    reasons = Counter(f"{one.kind} ({one.blame.value}): {one.message}" for one in failures)
    for reason, count in reasons.most_common(5):
        console.print(f"{count} without a verdict: {reason}", markup=False)
    if failures:
        console.print("They count as not resolved. The same command runs them again.")


if __name__ == "__main__":
    main()
