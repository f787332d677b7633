"""What a trainer's plug-in makes of ended rollouts. Runs in the trainer's environment.

`python -m bench.richer.trainer_rows TRAINER FILE` reads the rollouts of a group. Of each that is
trained on it prints, in JSON, the rewards of its response's tokens (`verl`), its reward (`trl`), or
the advantage of its sampled tokens (`tinker`).
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

from pydantic import TypeAdapter

from prorl_service.schemas import Rollout


def verl(group: list[Rollout]) -> list[list[float]]:
    from prorl_verl.rows import rows_of
    from prorl_verl.tensors import fields_of

    rows = [row for one in group for row in rows_of(one, max_response_tokens=1000)]
    return [fields_of(row, {})["rm_scores"].tolist() for row in rows]


def trl(group: list[Rollout]) -> list[list[float]]:
    from prorl_trl.convert import row_of

    rows = [row_of(one, eos_id=0, segments="refuse", overlong="keep") for one in group]
    return [[row.reward] for row in rows if row.reward is not None]


def tinker(group: list[Rollout]) -> list[list[float]]:
    from prorl_tinker.convert import samples_of

    samples = samples_of(group, "keep")
    columns = [(one.datum.loss_fn_inputs["advantages"].tolist(), one.mask) for one in samples]
    return [
        sorted({one for one, is_sampled in zip(*column, strict=True) if is_sampled})
        for column in columns
    ]


TRAINERS: dict[str, Callable[[list[Rollout]], list[list[float]]]] = {
    "verl": verl, "trl": trl, "tinker": tinker
}  # fmt: skip


if __name__ == "__main__":
    name, file = sys.argv[1:]
    rollouts = TypeAdapter(list[Rollout]).validate_json(Path(file).read_bytes())
    print(json.dumps(TRAINERS[name](rollouts)))
