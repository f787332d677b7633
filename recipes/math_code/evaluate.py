"""Scores a model: `python -m recipes.math_code.evaluate task=math|code|stem model=qwen3_4b
engines=[http://gpu1:8000]`.

Prints pass@1 and pass@k over seeds with intervals, the mean of each reward component, and what such
numbers depend on: sampling and thinking, budgets, data, grader. score.json keeps all of it,
`rollouts` the service's account of each rollout. Started again, it continues where it was.
"""

from collections.abc import Sequence

from omegaconf import DictConfig

from recipes.common.entry import command
from recipes.common.evaluation.evaluate import evaluate
from recipes.common.evaluation.scorecard import facts_of, report
from recipes.common.records import begin
from recipes.common.settings import Evaluation
from recipes.common.training import launch
from recipes.math_code import published, tasks
from recipes.math_code.rows import Problem

ANSWERS = ("rewards/math.py", "rewards/latex.py", "agents/answers.py")
GRADERS = {
    "math": (*ANSWERS, "agents/math.py"),
    "code": ("rewards/code/*.py", "agents/code/*.py"),
    "reasoning_gym": (
        *("rewards/math.py", "rewards/reasoning.py", "agents/answers.py"),
        "agents/reasoning_gym.py",
    ),
    "stem": (*ANSWERS, "rewards/stem.py", "rewards/judge/*.py", "agents/stem.py"),
}
"""Modules that decide about an answer, below the package."""


@command(
    Evaluation,
    "math_code_evaluate",
    tasks.of,
    "task=math model=tiny",
    "task=math model=qwen3_4b engines=[http://gpu1:8000] seeds=4 pass_at_k=[4]",
)
def main(settings: Evaluation, config: DictConfig) -> None:
    problems = tasks.problems_of(settings)
    chosen = tasks.tasks_of(settings, problems)
    begin(config)
    with launch.evaluating(settings, chosen, lambda: tasks.tiny_model(settings)) as url:
        _score(settings, problems, url)


def _score(settings: Evaluation, problems: Sequence[Problem], url: str) -> None:
    """Raises `ProRLError`."""
    facts = facts_of(settings, problems, url, GRADERS[settings.agent.name])
    result = evaluate(settings, tasks.tasks_of(settings, problems), facts, url)
    report(settings.output, result, facts, published.as_json(settings.agent.name))
    published.compare(settings, result)


if __name__ == "__main__":
    main()
