"""Conversion of a batch of prompts of VeRL's trainer to groups of the service."""

from collections.abc import Iterator
from typing import Any, Literal

from tensordict import NonTensorData

from prorl_service.schemas import Sampling
from prorl_verl.settings import Settings
from prorl_verl.store import Prompt
from prorl_verl.tasks import group_of, task_of


def prompts_of(
    batch: Any,
    settings: Settings,
    *,
    run_id: str,
    sampling: Sampling,
    n: int,
    partition: Literal["train", "val"],
) -> list[Prompt]:
    """Converts a TensorDict with a row for each prompt. Raises `ValueError` for a bad row."""
    prompts = []
    for row in _rows(batch):
        task = task_of(row, agent=settings.agent, image=settings.image)
        uid = str(row["uid"])
        group = group_of(
            row, task, name=f"{run_id}.{uid}", n=n, sampling=sampling, limits=settings.limits
        )
        prompts.append(Prompt(uid, row, group, int(row["global_steps"]), partition))
    return prompts


def _rows(batch: Any) -> Iterator[dict[str, Any]]:
    for index in range(len(batch)):
        yield {key: _item(column, index) for key, column in batch.items() if key != "validate"}


def _item(column: Any, index: int) -> Any:
    """Returns a row's item. Columns without tensors are one value for all rows, or some list."""
    if isinstance(column, NonTensorData):
        return column.data
    item = column[index]
    return item.data if isinstance(item, NonTensorData) else item
