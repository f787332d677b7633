"""The rows of a run's data set, by id: read, chosen, made into tasks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from prorl_service.client.harness import with_harness
from prorl_service.errors import InvalidRequest, problems_of
from prorl_service.gateway.harnesses import store
from prorl_service.schemas import Task
from recipes.common.settings import BadSettings, Data, Run

FORMS = "docs/recipes.md, Rows of your own; docs/swe.md, Rows"
SHOWN = 5
"""Most bad rows that an error names."""
Row = TypeVar("Row")


def read(data: Data, row_of: Callable[[str], Row], id_of: Callable[[Row], str]) -> dict[str, Row]:
    """Reads all rows, each a line. Raises `BadSettings`, with a line for each bad row."""
    is_made = str(data.rows.parent) in data.make.split()
    if not data.rows.is_file():
        raise BadSettings(f"data={data.name}: {data.rows} does not exist", hint=data.make)
    hint = f"make it again: {data.make}" if is_made else f"what a row looks like: {FORMS}"
    rows: dict[str, Row] = {}
    problems = []
    try:
        # Not splitlines(): it also splits at characters that JSON does not escape.
        for number, line in enumerate(data.rows.read_text().split("\n"), 1):
            try:
                row = row_of(line) if line else None
            except ValidationError as error:
                problems.append(f"line {number}: {problems_in(error)}")
            else:
                rows |= {} if row is None else {id_of(row): row}
    except UnicodeDecodeError as error:
        raise BadSettings(f"{data.rows} is not UTF-8: {error.reason}", hint=hint) from error
    if problems:
        more = [f"and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
        said = [f"{data.rows} has rows that cannot be used", *problems[:SHOWN], *more]
        raise BadSettings("\n  ".join(said), hint=hint)
    if not rows:
        raise BadSettings(f"{data.rows} is empty", hint=hint)
    return rows


def problems_in(error: ValidationError) -> str:
    """Returns the problems of a row in one line."""
    if error.errors()[0]["type"] == "union_tag_not_found":
        return "kind: Field required"
    return problems_of(error).removeprefix(": ")


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
