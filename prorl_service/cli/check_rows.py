"""Rows of files for `prorl check`: tasks, each with its place for people and a solution if given.

Reads a task a line (JSONL), a JSON list of tasks, the rows of trainers (`prompt` and `prorl`) in
these or in Parquet, and task directories of Harbor.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from prorl_service.client.datasets import task_from, valid_task
from prorl_service.errors import InvalidRequest, ProRLError
from prorl_service.schemas import Task

SOLUTION = "solution"
"""Key of a row with what solves its task, which is not sent to services."""


@dataclass(frozen=True, slots=True)
class GivenRow:
    """A row as read: a JSON object, or why it is none."""

    value: Any
    problem: str = ""

    @property
    def solution(self) -> JsonValue:
        return self.value.get(SOLUTION) if isinstance(self.value, Mapping) else None

    def task(self, agent: str | None) -> Task:
        """Returns the task, for `agent` if there is one. Raises `ValueError`."""
        if self.problem:
            raise ValueError(self.problem)
        if not isinstance(self.value, Mapping):
            raise ValueError("it is not an object")
        row = {name: one for name, one in self.value.items() if name != SOLUTION}
        if "prompt" in row:
            return _of_trainer(row, agent)
        fields = row["task"] if isinstance(row.get("task"), Mapping) else row
        return valid_task({**fields, "agent": agent} if agent else fields)


def _of_trainer(row: Mapping[str, Any], agent: str | None) -> Task:
    if not isinstance(row["prompt"], list) or not row["prompt"]:
        raise ValueError("prompt: it must be a list of messages")
    messages = [{k: v for k, v in one.items() if k != "prorl"} for one in row["prompt"]]
    truth = (row.get("reward_model") or {}).get("ground_truth")
    task = task_from(
        messages,
        row.get("prorl") or row["prompt"][-1].get("prorl"),
        default_agent=agent,
        no_agent_hint="name one with --agent",
        data=None if truth is None else {"answer": str(truth)},
    )
    return task.model_copy(update={"agent": agent}) if agent else task


def read_rows(source: Path) -> Iterator[tuple[str, GivenRow]]:
    """Yields each row and its place, such as "line 4". Raises `ProRLError`."""
    try:
        if source.is_dir():
            yield from _of_harbor(source)
        elif source.suffix == ".parquet":
            yield from _of_parquet(source)
        elif source.suffix == ".json":
            yield from _of_json(source)
        else:
            yield from _of_lines(source)
    except OSError as error:
        raise ProRLError(f"{source}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ProRLError(f"{source}: {error}") from None


def _of_lines(source: Path) -> Iterator[tuple[str, GivenRow]]:
    with source.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield f"line {number}", _parsed(line)


def _parsed(text: str) -> GivenRow:
    try:
        return GivenRow(json.loads(text))
    except (ValueError, RecursionError) as error:
        return GivenRow(None, f"it is not JSON: {error}")


def _of_json(source: Path) -> Iterator[tuple[str, GivenRow]]:
    row = _parsed(source.read_text(encoding="utf-8"))
    if row.problem:
        raise InvalidRequest(f"{source}: {row.problem}", hint="a task a line: name it .jsonl")
    rows = row.value if isinstance(row.value, list) else [row.value]
    for number, value in enumerate(rows, 1):
        yield f"row {number}", GivenRow(value)


def _of_parquet(source: Path) -> Iterator[tuple[str, GivenRow]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ProRLError(f"{source}: Parquet needs pyarrow: `pip install pyarrow`") from None
    number = 0
    try:
        with pq.ParquetFile(source) as file:
            for batch in file.iter_batches(batch_size=256):
                for value in batch.to_pylist():
                    number += 1
                    yield f"row {number}", GivenRow(value)
    except pa.ArrowException as error:
        raise ProRLError(f"{source}: {error}") from None


def _of_harbor(source: Path) -> Iterator[tuple[str, GivenRow]]:
    from prorl_service.cli.harbor_reading import read_all

    found, _ = read_all([source], strict=True)
    for one in found:
        yield str(one.directory.path), GivenRow(one.task.model_dump(mode="json"))
