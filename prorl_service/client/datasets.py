"""Tasks in the rows of a trainer's data set: messages, and one JSON string with all the rest; and
the check of whole data sets before training.

A string, because data sets force all rows to one schema, and `data` differs from task to task.
Pure; each plug-in chooses the column or key that holds the string, and how a service is asked.
"""

import hashlib
import io
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pydantic import JsonValue, ValidationError

from prorl_service.errors import InvalidRequest, ProRLError, field_problems
from prorl_service.schemas import Difficulty, FieldProblem, Task, TaskProblem
from prorl_service.schemas.pictures import url_of

ChatMessage = Mapping[str, Any]
Ask = Callable[[Sequence[Mapping[str, Any]]], list[TaskProblem]]
"""Function that has a service check tasks, given as JSON: `RolloutClient.check_tasks`."""

ROWS_AT_ONCE = 256
BYTES_AT_ONCE = 8 << 20
"""Size of a request from which its rows wait for the next one."""
SHOWN = 10


def task_payload(
    *,
    task_id: str,
    agent: str | None = None,
    data: Mapping[str, Any] | None = None,
    image: str | None = None,
    difficulty: Difficulty | None = None,
    solution: JsonValue = None,
    messages: Sequence[ChatMessage] | None = None,
) -> str:
    """`messages`: the task's, if the row's own have no place for its pictures."""
    fields: dict[str, Any] = {
        "task_id": task_id,
        "agent": agent,
        "data": dict(data or {}),
        "image": image,
    }
    if difficulty is not None:
        fields["difficulty"] = difficulty.model_dump()
    if solution is not None:
        fields["solution"] = solution
    if messages is not None:
        fields["messages"] = [_message(message) for message in messages]
    return json.dumps(fields)


def task_from(
    messages: Sequence[ChatMessage],
    payload: str | None,
    *,
    default_agent: str | None,
    no_agent_hint: str,
    data: Mapping[str, Any] | None = None,
) -> Task:
    """Returns the task in `payload`, for `default_agent` if it names none.

    Without a payload the task consists of the messages and `data`. Raises `ValueError` for an
    invalid task, and with `no_agent_hint` if there is no agent.
    """
    messages = [_message(message) for message in messages]
    if payload:
        fields = json.loads(payload)
        if not isinstance(fields, dict):
            raise ValueError(f"the task must be a JSON object, not {payload:.80}")
    else:
        fields = {"task_id": _content_id(messages), "data": dict(data or {})}
    fields["agent"] = fields.get("agent") or default_agent
    if fields["agent"] is None:
        raise ValueError(f"a prompt names no agent: {no_agent_hint}")
    return valid_task({"messages": messages, **fields})


class NotATask(ValueError):
    """Fields that make no task, with the bad ones."""

    def __init__(self, task_id: object, problems: Sequence[FieldProblem]) -> None:
        self.task_id = task_id if isinstance(task_id, str) else None
        self.problems = problems
        said = "; ".join(f"{one.field}: {one.message}" for one in problems)
        super().__init__(said if self.task_id is None else f"task {task_id}: {said}")


def valid_task(fields: Mapping[str, Any]) -> Task:
    """Raises `NotATask`."""
    try:
        return Task.model_validate(fields)
    except ValidationError as error:
        raise NotATask(fields.get("task_id"), field_problems(error)) from None


def _message(message: ChatMessage) -> dict[str, Any]:
    """Drops None values: data sets give every message the keys of all others, filled with None.
    Pictures become files. Raises `ValueError`."""
    fields = {key: value for key, value in message.items() if value is not None}
    if isinstance(content := fields.get("content"), list):
        fields["content"] = [_part(part) for part in content]
    return fields


def _part(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a part in OpenAI's form; TRL has pictures of PIL's in them."""
    if (picture := part.get("image")) is None:
        return {key: value for key, value in part.items() if value is not None}
    if picture.mode != "RGB":
        raise ValueError(
            f"a picture is of mode {picture.mode}, which engine and trainer may show in different "
            "ways: convert it with `picture.convert('RGB')`"
        )
    file = io.BytesIO()
    picture.save(file, "PNG")
    return {"type": "image_url", "image_url": {"url": url_of(file.getvalue())}}


def _content_id(messages: Sequence[ChatMessage]) -> str:
    content = json.dumps([[one.get("role"), one.get("content")] for one in messages])
    return "prompt-" + hashlib.sha256(content.encode()).hexdigest()[:16]


def rows_without_end(dataset: Any, seed: int | None) -> Iterator[Any]:
    """Yields a dataset's rows without end: in its order, or reshuffled in each round if there is a
    `seed` and the dataset has a length. Raises `ValueError` if it is empty."""
    order = random.Random(seed)
    while True:
        rows: Any = dataset
        if seed is not None and hasattr(dataset, "__len__"):
            rows = (dataset[i] for i in order.sample(range(len(dataset)), len(dataset)))
        is_empty = True
        for row in rows:
            is_empty = False
            yield row
        if is_empty:
            raise ValueError("the training dataset is empty")


# --- checks -------------------------------------------------------------------------------------


class BadRows(InvalidRequest):
    """Rows of a data set cannot run. Raised before any rollout."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """One problem of a row. `where` names the row for people, such as "line 4"."""

    where: str
    message: str
    task_id: str | None = None
    field: str = ""
    hint: str = ""

    def __str__(self) -> str:
        row = self.where if self.task_id is None else f"{self.where}, task {self.task_id}"
        return ": ".join(filter(None, (row, self.field, self.message)))


def check_rows(rows: Iterable[tuple[str, Any]], task_of: Callable[[Any], Task], ask: Ask) -> None:
    """Raises `BadRows`, which names the first ten; see `bad_rows`."""
    if bad := list(bad_rows(rows, task_of, ask)):
        raise BadRows("\n  ".join(filter(None, [*summary(bad), hints(bad)])))


def bad_rows(
    rows: Iterable[tuple[str, Any]], task_of: Callable[[Any], Task], ask: Ask
) -> Iterator[BadRow]:
    """Yields the problems of rows, each given with its place for people, in their order.

    `task_of` raises `ValueError` or `ProRLError` for a row that is no task.
    """
    left = iter(rows)
    while batch := list(_batch(left, task_of)):
        tasks = {place: one for place, (_, one) in enumerate(batch) if isinstance(one, Task)}
        asked = ask([one.model_dump(mode="json") for one in tasks.values()]) if tasks else []
        places = list(tasks)
        problems: dict[int, list[TaskProblem]] = {}
        for problem in asked:
            problems.setdefault(places[problem.index], []).append(problem)
        for place, (where, one) in enumerate(batch):
            if isinstance(one, Task):
                yield from (_bad(where, problem) for problem in problems.get(place, ()))
            else:
                yield from one


def _batch(
    rows: Iterator[tuple[str, Any]], task_of: Callable[[Any], Task]
) -> Iterator[tuple[str, Task | list[BadRow]]]:
    size = 0
    for where, row in islice(rows, ROWS_AT_ONCE):
        try:
            task = task_of(row)
        except NotATask as error:
            id_, problems = error.task_id, error.problems
            yield where, [BadRow(where, one.message, id_, one.field) for one in problems]
        except (ValueError, ProRLError) as error:
            yield where, [BadRow(where, str(error), hint=getattr(error, "hint", ""))]
        except Exception as error:  # a row may hold anything in the place of messages
            yield where, [BadRow(where, f"it is no task: {type(error).__name__}: {error}")]
        else:
            yield where, task
            size += len(task.model_dump_json())
            if size >= BYTES_AT_ONCE:
                return


def _bad(where: str, problem: TaskProblem) -> BadRow:
    return BadRow(where, problem.message, problem.task_id, problem.field, problem.hint)


def summary(bad: Sequence[BadRow]) -> list[str]:
    """Returns how many rows are bad, and a line for each of the first ten."""
    count = len({one.where for one in bad})
    first = list(dict.fromkeys(one.where for one in bad))[:SHOWN]
    lines = [f"{count} {'row' if count == 1 else 'rows'} cannot be trained on:"]
    lines += [str(one) for one in bad if one.where in first]
    return lines if count <= SHOWN else [*lines, f"and {count - SHOWN} more"]


def hints(bad: Sequence[BadRow]) -> str:
    return "; ".join(list(dict.fromkeys(one.hint for one in bad if one.hint))[:3])
