"""Training tasks: a given mix for the comparison, the demo's for the curve."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any

from prorl_service.schemas import Task
from prorl_verl import task_payload
from recipes.demo.programs import task_for
from recipes.demo.tasks import instances
from tests.verl.data import row, write_rows

INFORMATIVE_SHARE = 0.3
MEDIAN_PAUSE_S, SPREAD = 1.0, 0.8
LONGEST_PAUSE_S = 8.0
MIXED = 400
GROUP_SIZE = 4
HELDOUT_PER_FAMILY = 50


def write_mix(directory: Path, seed: int, informative: int) -> int:
    """Writes tasks with log-normal lengths, as agents have. Returns how many tasks it takes, in
    order, to find that many informative ones."""
    rng = Random(seed)
    rows, found = [], []
    for index in range(MIXED):
        pauses = [rng.lognormvariate(0, SPREAD) * MEDIAN_PAUSE_S for _ in range(GROUP_SIZE)]
        data = {
            "pauses_s": [round(min(one, LONGEST_PAUSE_S), 2) for one in pauses],
            "is_informative": rng.random() < INFORMATIVE_SHARE,
        }
        if data["is_informative"]:
            found.append(index)
        payload = task_payload(task_id=f"mix-{index}", agent="mix", data=data)
        rows.append(row(f"task {index}", index=index) | {"prorl": payload})
    write_rows(directory / "train.parquet", rows)
    write_rows(directory / "val.parquet", rows[:1])
    return found[informative - 1] + 1


Tasks = Mapping[str, Iterable[Task]]
"""Tasks of `train` and `val`."""


def demo_tasks(per_family: int, program: str | None = None, *, seed: int = 0) -> Tasks:
    """`program` takes the turns in place of the service's own loop. `seed` of the training's."""
    task_of = task_for(program)
    made = {
        "train": instances("train", per_family, seed=seed),
        "val": instances("heldout", HELDOUT_PER_FAMILY, seed=0),
    }
    return {name: [task_of(one) for one in some] for name, some in made.items()}


def write_tasks(directory: Path, tasks: Tasks) -> None:
    for name, some in tasks.items():
        rows = [_task_row(task, index) for index, task in enumerate(some)]
        write_rows(directory / f"{name}.parquet", rows)


def _task_row(task: Task, index: int) -> dict[str, Any]:
    messages = [one.model_dump() for one in task.messages]
    shown = messages if any(one.pictures for one in task.messages) else None
    payload = task_payload(task_id=task.task_id, agent=task.agent, data=task.data, messages=shown)
    prompt = [{"role": one.role, "content": one.content} for one in task.messages]
    return row("", index=index) | {"prompt": prompt, "prorl": payload}
