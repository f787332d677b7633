"""The rows of a run's data set, by id: read, chosen, made into tasks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from prorl_service.client.harness import with_harness
from prorl_service.errors import InvalidRequest
from prorl_service.gateway.harnesses import store
from prorl_service.schemas import Task
from recipes.common.settings import BadSettings, Data, Run

Row = TypeVar("Row")


def read(
    data: Data, reader: Callable[[Path], Sequence[Row]], id_of: Callable[[Row], str]
) -> dict[str, Row]:
    """Reads all rows. Raises `BadSettings`."""
    if not data.rows.is_file():
        raise BadSettings(f"data={data.name}: {data.rows} does not exist", hint=data.make)
    try:
        rows = {id_of(row): row for row in reader(data.rows)}
    except (ValidationError, UnicodeDecodeError) as error:
        raise BadSettings(
            f"{data.rows} has a line that cannot be used: {error}",
            hint=f"make it again: {data.make}",
        ) from error
    if not rows:
        raise BadSettings(f"{data.rows} is empty", hint=data.make)
    return rows


def chosen(data: Data, rows: Mapping[str, Row]) -> list[Row]:
    """Returns the rows that the run uses. Raises `BadSettings`."""
    return named(data, rows, data.only) if data.only else list(rows.values())


def named(data: Data, rows: Mapping[str, Row], ids: Sequence[str]) -> list[Row]:
    """Returns the rows with these ids. Raises `BadSettings` if one is missing."""
    if missing := [one for one in ids if one not in rows]:
        raise BadSettings(f"{data.rows} has no row {', '.join(missing)}", hint=data.make)
    return [rows[one] for one in ids]


def tasks(
    settings: Run, rows: Iterable[Row], task_of: Callable[[Row, Mapping[str, Any]], Task]
) -> list[Task]:
    """Makes a task of each row; `task_of` gets `agent.options`. Raises `BadSettings` if the agent
    does not accept them."""
    check_harness(settings)
    harness = settings.harness
    try:
        made = [task_of(row, settings.agent.options) for row in rows]
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
        raise BadSettings(f"agent.options: {'; '.join(problems)}") from error
    return made if harness is None else [with_harness(task, harness) for task in made]


def check_harness(settings: Run) -> None:
    """Raises `BadSettings` if there is no such preset."""
    if settings.harness is None:
        return
    try:
        store.parse(settings.harness)
    except InvalidRequest as error:
        raise BadSettings(f"harness={settings.harness}: {error.message}", hint=error.hint) from None
