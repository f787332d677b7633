"""Sources of rollouts to export: files and directories of JSON, and journals.

Rollouts are read one by one, so memory stays bounded. A running service gives what it and its shelf
still have; its journal can be read as well while it runs.
"""

import json
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from prorl_service.client import RolloutClient, ServiceCallError
from prorl_service.client.saved import TASKS, UnusableFile, read_rollouts, read_tasks, saved_steps
from prorl_service.exports.transcript import ExportRecord
from prorl_service.rollouts.journal.copy import groups_in, is_database
from prorl_service.schemas import TERMINAL_STATES, Group, Rollout
from prorl_service.schemas.views import RolloutRow, RowFilter

log = logging.getLogger(__name__)

STANDARD_INPUT = "-"
SERVICE_RETRY_S = 10.0
_SPACE = re.compile(r"\s*")


def records(sources: Sequence[str]) -> Iterator[ExportRecord]:
    """Yields the rollouts of all sources in turn. Raises `ProRLError`."""
    for source in sources:
        if source == STANDARD_INPUT:
            yield from map(ExportRecord, _in_text(sys.stdin.read(), "standard input"))
        elif source.startswith(("http://", "https://")):
            yield from of_service(source)
        else:
            yield from _of_path(Path(source))


def of_service(url: str) -> Iterator[ExportRecord]:
    """Reads what has ended in the service's run, as far as its text is kept; without tasks, which
    a service does not give back. Raises `ProRLError`."""
    left_out = 0
    with RolloutClient(url, retry_s=SERVICE_RETRY_S) as client:
        wanted = RowFilter(run=client.status().run, state=list(TERMINAL_STATES))
        for page in client.rollout_pages(wanted):
            for row in page.rollouts:
                rollout = _whole(client, row) if row.has_content else None
                if rollout is not None:
                    yield ExportRecord(rollout)
                else:
                    left_out += 1
    if left_out:
        log.warning("%d rollouts left out, of which %s keeps no text", left_out, url)


def _whole(client: RolloutClient, row: RolloutRow) -> Rollout | None:
    """Returns None for one that has left the shelf meanwhile."""
    try:
        return client.get(row.rollout_id)
    except ServiceCallError as error:
        if error.http_status == HTTPStatus.NOT_FOUND:
            return None
        raise


def _of_path(path: Path) -> Iterator[ExportRecord]:
    try:
        if path.is_dir():
            yield from _of_directory(path)
        elif is_database(path):
            yield from _of_journal(path)
        else:
            tasks = read_tasks(path.parent)
            yield from (ExportRecord(one, tasks.get(one.task_id)) for one in _of_file(path))
    except OSError as error:
        raise UnusableFile(f"{path}: {error.strerror}") from error


def _of_directory(directory: Path) -> Iterator[ExportRecord]:
    """Reads only training steps if there are any, so that evaluations are not trained on."""
    steps = [directory / one.file_name for one in saved_steps(directory) if not one.is_evaluation]
    others = sorted(path for path in directory.glob("*.json*") if path.name != TASKS)
    if not (files := steps or others):
        raise UnusableFile(f"{directory} has no file of rollouts, such as step-000001.jsonl")
    tasks = read_tasks(directory)
    for file in files:
        yield from (ExportRecord(one, tasks.get(one.task_id)) for one in _of_file(file))


def _of_journal(file: Path) -> Iterator[ExportRecord]:
    for request, answers in groups_in(file):
        task = Group.model_validate_json(request).task
        yield from (ExportRecord(Rollout.model_validate_json(one), task) for one in answers)


def _of_file(file: Path) -> Iterator[Rollout]:
    """Reads one rollout per line, or JSON documents that span several lines."""
    with file.open("rb") as content:
        is_document = not _is_json(content.readline())
    if is_document:
        yield from _in_text(file.read_text(encoding="utf-8", errors="replace"), str(file))
    else:
        yield from read_rollouts(file)


def _is_json(line: bytes) -> bool:
    """Returns whether a line is an object by itself, or blank."""
    try:
        return not line.strip() or isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _in_text(text: str, name: str) -> Iterator[Rollout]:
    """Reads one rollout, several in a row, or lists of them. Raises `UnusableFile`."""
    decoder = json.JSONDecoder()
    at = _SPACE.match(text).end()  # type: ignore[union-attr]
    while at < len(text):
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise UnusableFile(f"{name}: not JSON or a journal: {error}") from error
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
        for one in value if isinstance(value, list) else [value]:
            yield _rollout(one, name)


def _rollout(value: Any, name: str) -> Rollout:
    try:
        return Rollout.model_validate(value)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise UnusableFile(f"{name}: not a rollout: {where}: {problem['msg']}") from error
