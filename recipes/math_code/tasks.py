"""The tasks of a run, from the rows of a data set, and the tiny model that tries some of them."""

from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path

from prorl_service.sandbox.cache import cache_root
from prorl_service.schemas import Task
from recipes.common.data import rows as data_rows
from recipes.common.settings import BadSettings, Run
from recipes.math_code.rows import PROBLEM, Problem


def problems_of(settings: Run) -> list[Problem]:
    """Returns the run's problems. Raises `BadSettings`, also if one is not for the agent."""
    rows = data_rows.read(settings.data, PROBLEM.validate_json, attrgetter("problem_id"))
    chosen = data_rows.chosen(settings.data, rows)
    if others := {problem.kind for problem in chosen} - {settings.agent.name}:
        raise BadSettings(
            f"data={settings.data.name} has problems for task={', '.join(sorted(others))}",
            hint=f"choose data of task={settings.agent.name}",
        )
    return chosen


def tasks_of(settings: Run, problems: Sequence[Problem]) -> list[Task]:
    """Makes tasks of the problems. Raises `BadSettings`."""
    made = data_rows.tasks(settings, problems, lambda problem, options: problem.task(options))
    return [task.model_copy(update={"image": settings.agent.image}) for task in made]


def of(settings: Run) -> list[Task]:
    """Reads the run's tasks. Raises `BadSettings`."""
    return tasks_of(settings, problems_of(settings))


def tiny_model(settings: Run) -> Path:
    """Returns the model's directory. Raises `ProRLError`."""
    from recipes.math_code.offline import look
    from recipes.math_code.tiny import warm_started_for
    from recipes.smollm import model

    warm_start = settings.model.warm_start
    assert warm_start is not None
    if warm_start.sees:
        assert warm_start.vocab_size is not None
        return look.policy(
            cache_root(),
            options=settings.agent.options,
            extent=warm_start.extent(),
            vocab_size=warm_start.vocab_size,
        )
    base = warm_start.vocab_size or model.cached()
    agent, extent = settings.agent, warm_start.extent()
    return warm_started_for(agent.name, agent.options, extent, cache_root(), base)
