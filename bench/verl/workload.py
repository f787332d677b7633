"""Training tasks: a given mix for the comparison, the demo's for the curve."""

from pathlib import Path
from random import Random

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


def write_demo(directory: Path, per_family: int, program: str | None) -> None:
    """`program` takes the turns in place of the service's own loop."""
    task_of = task_for(program)
    train = instances("train", per_family, seed=0)
    heldout = instances("heldout", HELDOUT_PER_FAMILY, seed=0)
    for name, made in (("train", train), ("val", heldout)):
        rows = []
        for index, instance in enumerate(made):
            task = task_of(instance)
            payload = task_payload(task_id=task.task_id, agent=task.agent, data=task.data)
            messages = [message.model_dump() for message in task.messages]
            rows.append(row("", index=index) | {"prompt": messages, "prorl": payload})
        write_rows(directory / f"{name}.parquet", rows)
