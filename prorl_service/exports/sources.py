"""Sources of rollouts to export: files with one a line, directories of them, services, journals.

Rollouts are read one by one, so memory stays bounded. A running service gives what it and its shelf
still have; its journal can be read as well while it runs.
"""

import logging
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from pathlib import Path

from prorl_service.client import RolloutClient, ServiceCallError
from prorl_service.client.saved import TASKS, UnusableFile, read_rollouts, read_tasks, saved_steps
from prorl_service.exports.transcript import ExportRecord
from prorl_service.rollouts.journal.copy import groups_in, is_database
from prorl_service.schemas import TERMINAL_STATES, Group, Rollout
from prorl_service.schemas.views import RolloutRow, RowFilter

log = logging.getLogger(__name__)

STANDARD_INPUT = "-"
SERVICE_RETRY_S = 10.0


def records(sources: Sequence[str]) -> Iterator[ExportRecord]:
    """Yields the rollouts of all sources in turn. Raises `ProRLError`."""
    for source in sources:
        if source == STANDARD_INPUT:
            yield from map(ExportRecord, read_rollouts(Path("/dev/stdin")))
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
            yield from (ExportRecord(one, tasks.get(one.task_id)) for one in read_rollouts(path))
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
        yield from (ExportRecord(one, tasks.get(one.task_id)) for one in read_rollouts(file))


def _of_journal(file: Path) -> Iterator[ExportRecord]:
    for request, answers in groups_in(file):
        task = Group.model_validate_json(request).task
        yield from (ExportRecord(Rollout.model_validate_json(one), task) for one in answers)
