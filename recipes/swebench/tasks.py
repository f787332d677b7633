"""The tasks of a run, from the rows of a data set, and the tiny model that learns some of them."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path

from prorl_service.sandbox.cache import cache_root
from prorl_service.schemas import Task
from recipes.common.data import rows as data_rows
from recipes.common.settings import BadSettings, Run
from recipes.swebench.rows import SweInstance


def rows_of(settings: Run) -> dict[str, SweInstance]:
    """Reads all rows, by id. Raises `BadSettings`."""
    return data_rows.read(settings.data, SweInstance.model_validate_json, attrgetter("instance_id"))


def tasks_of(settings: Run, rows: Sequence[SweInstance]) -> list[Task]:
    """Makes tasks of the rows. Raises `BadSettings`."""
    return data_rows.tasks(settings, rows, SweInstance.task)


def of(settings: Run) -> list[Task]:
    """Reads the run's tasks. Raises `BadSettings`."""
    return tasks_of(settings, data_rows.chosen(settings.data, rows_of(settings)))


def tiny_model(settings: Run, rows: Mapping[str, SweInstance]) -> Path:
    """Returns the model's directory. Raises `ProRLError`."""
    from recipes.swebench.tiny import warm_started_on

    warm_start = settings.model.warm_start
    assert warm_start is not None
    if warm_start.vocab_size is None:
        raise BadSettings(f"model={settings.model.name} is for problems, not for SWE")
    known = data_rows.named(settings.data, rows, warm_start.tasks)
    return warm_started_on(
        *(known, cache_root() / "swe-tiny", warm_start.extent(), warm_start.vocab_size),
        settings.sandbox.kind,
    )
