"""From the rows of a data set to a run's tasks, and to the tiny model that learns some of them."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path

from prorl_service.sandbox.cache import cache_root
from prorl_service.schemas import Task
from recipes.common.data import rows as data_rows
from recipes.common.settings import Run
from recipes.swebench.rows import SweInstance, read_rows


def rows_of(settings: Run) -> dict[str, SweInstance]:
    """All, by id. Raises `BadSettings`."""
    return data_rows.read(settings.data, read_rows, attrgetter("instance_id"))


def tasks_of(settings: Run, rows: Sequence[SweInstance]) -> list[Task]:
    """Raises `BadSettings`."""
    return data_rows.tasks(settings, rows, SweInstance.task)


def tiny_model(settings: Run, rows: Mapping[str, SweInstance]) -> Path:
    """Directory. Raises `ProRLError`."""
    from recipes.common.training.imitation import Imitation
    from recipes.swebench.tiny import warm_started_on

    warm_start = settings.model.warm_start
    assert warm_start is not None
    config = Imitation(**warm_start.model_dump(exclude={"tasks"}), seed=0)
    known = data_rows.named(settings.data, rows, warm_start.tasks)
    return warm_started_on(known, cache_root() / "swe-tiny", config, settings.sandbox.kind)
