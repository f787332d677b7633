"""Conversion of rows of VeRL's data sets, and of batches of its trainer, to tasks and groups.

A row describes its task in the column `prorl` (see `task_payload`). Without it the task is the
prompt, with the ground truth as its answer, so that data sets made for VeRL work as they are.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from tensordict import NonTensorData

from prorl_service.client.datasets import task_from
from prorl_service.client.trainers_service import LEASE_S
from prorl_service.schemas import Group, Limits, Sampling, Task
from prorl_verl.settings import Settings
from prorl_verl.store import Prompt

TASK_COLUMN = "prorl"


def task_of(row: Mapping[str, Any], *, agent: str | None, image: str | None) -> Task:
    """Raises `ValueError` when the row cannot be given to the service."""
    truth = (row.get("reward_model") or {}).get("ground_truth")
    task = task_from(
        list(row["raw_prompt"]),
        row.get(TASK_COLUMN),
        default_agent=agent,
        no_agent_hint=f"give the data set a column {TASK_COLUMN!r} made by "
        "`prorl_verl.task_payload(...)`, or name one for all tasks: prorl.agent=math",
        data=None if truth is None else {"answer": str(truth)},
    )
    return task if task.image else task.model_copy(update={"image": image})


def group_of(
    row: Mapping[str, Any], task: Task, *, name: str, n: int, sampling: Sampling, limits: Limits
) -> Group:
    """Returns a group. Its row's `__rollout_n__` and `__do_sample__` come first, as in VeRL."""
    if not row.get("__do_sample__", True):
        sampling = sampling.model_copy(update={"temperature": 0.0, "top_p": 1.0, "top_k": 0})
    return Group(
        group_id=name,
        task=task,
        n=int(row.get("__rollout_n__", n)),
        sampling=sampling,
        limits=limits,
        lease_s=LEASE_S,
    )


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
