"""From the rows of a data set to a run's tasks, and to the tiny model that learns some of them."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from prorl_service.sandbox.cache import cache_root
from prorl_service.schemas import Task
from recipes.common import checks
from recipes.common.settings import BadSettings, Run
from recipes.swebench.rows import SweInstance, read_rows


def rows_of(settings: Run) -> list[SweInstance]:
    """All. Raises `BadSettings`."""
    checks.check_rows(settings.data)
    try:
        return read_rows(settings.data.rows)
    except (ValidationError, UnicodeDecodeError) as error:
        raise BadSettings(
            f"{settings.data.rows} has a line that is no instance: {error}",
            hint=f"make it again: {settings.data.make}",
        ) from error


def chosen(settings: Run, rows: Sequence[SweInstance]) -> list[SweInstance]:
    """What the run is about. Raises `BadSettings`."""
    if not rows:
        raise BadSettings(f"{settings.data.rows} is empty", hint=settings.data.make)
    return _named(settings, rows, settings.data.only) if settings.data.only else list(rows)


def tasks_of(settings: Run, rows: Sequence[SweInstance]) -> list[Task]:
    return [row.task(ipython=settings.agent.ipython) for row in rows]


def tiny_model(settings: Run, rows: Sequence[SweInstance]) -> Path:
    """Directory. Raises `ProRLError`."""
    from recipes.common.imitation import Imitation
    from recipes.swebench.tiny import warm_started_on

    warm_start = settings.model.warm_start
    assert warm_start is not None
    config = Imitation(**warm_start.model_dump(exclude={"tasks"}), seed=0)
    known = _named(settings, rows, warm_start.tasks)
    return warm_started_on(known, cache_root() / "swe-tiny", config, settings.sandbox.kind)


def _named(settings: Run, rows: Sequence[SweInstance], ids: Sequence[str]) -> list[SweInstance]:
    known = {row.instance_id: row for row in rows}
    if missing := [one for one in ids if one not in known]:
        raise BadSettings(
            f"{settings.data.rows} has no instance {', '.join(missing)}", hint=settings.data.make
        )
    return [known[one] for one in ids]
