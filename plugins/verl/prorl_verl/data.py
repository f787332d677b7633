"""The check of VeRL's data sets before the first rollout, over the files that its trainer reads.

Local Parquet files are read; rows of other files, and of data sets of the user's own class, are
checked when they are submitted.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from prorl_service.client import RolloutClient
from prorl_service.client.datasets import check_rows
from prorl_service.schemas import TaskProblem
from prorl_verl.settings import Settings, sampling_of
from prorl_verl.tasks import TASK_COLUMN, task_of

ROWS_AT_ONCE = 256


def check_data(config: Mapping[str, Any], settings: Settings) -> None:
    """Raises `BadRows` unless all rows can run. Engines must be registered with the service."""
    data = config["data"]
    if (data.get("custom_cls") or {}).get("path"):
        return
    of_row = partial(task_of, agent=settings.agent, image=settings.image)
    sampling = sampling_of(config, settings, validate=False)
    with RolloutClient(**settings.client_options()) as client:

        def ask(tasks: Any) -> list[TaskProblem]:
            problems = client.check_tasks(tasks, sampling)
            return [one for one in problems if not _is_filtered(one, data)]

        check_rows(_rows(data), of_row, ask)


def _is_filtered(problem: TaskProblem, data: Mapping[str, Any]) -> bool:
    """Returns whether VeRL leaves the row out: one with a prompt that is too long."""
    return bool(data.get("filter_overlong_prompts")) and problem.field == "messages"


def _rows(data: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields rows as VeRL gives them to its agent loops, with their places."""
    prompt = data.get("prompt_key") or "prompt"
    for key in ("train_files", "val_files"):
        files = data.get(key) or []
        for file in [files] if isinstance(files, str) else files:
            if str(file).endswith(".parquet") and Path(file).is_file():
                yield from _rows_of(Path(file), prompt)


def _rows_of(file: Path, prompt: str) -> Iterator[tuple[str, dict[str, Any]]]:
    number = 0
    with pq.ParquetFile(file) as parquet:
        wanted = {prompt, TASK_COLUMN, "reward_model"} & set(parquet.schema_arrow.names)
        for batch in parquet.iter_batches(ROWS_AT_ONCE, columns=sorted(wanted)):
            for row in batch.to_pylist():
                number += 1
                yield f"{file}, row {number}", {**row, "raw_prompt": row.get(prompt) or []}
