"""One of several training processes: `worker.py URL POLICY OUTPUT KIND`, started by torchrun.

Writes what this process was given and how training ended to OUTPUT/rank-N.json. KIND "failing": the
second step fails as a whole; "dynamic": half of the tasks teach nothing; "replay": what "dynamic"
saved in OUTPUT, again; "scored": a step saved in OUTPUT, with another reward function.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from torch.distributed import barrier, destroy_process_group

from prorl_service.schemas import Sampling
from tests.trl.training import RecordingRollout, RecordingTrainer, make_trainer


def by_rank(completion_ids: list[list[int]], **_: Any) -> list[float]:
    return [int(os.environ["RANK"]) + 5 / len(ids) for ids in completion_ids]


HALF_EASY: list[str | None] = ["easy", None]
FAULTS: dict[str, list[str | None]] = {
    "failing": [None, "agent"],
    "dynamic": HALF_EASY,
    "replay": HALF_EASY,
    "scored": [None] * 3,
}


def main(url: str, policy: Path, output: Path, kind: str) -> None:
    rollouts = RecordingRollout(
        url,
        overlong="keep",
        sampling=Sampling(max_tokens_per_turn=8),
        dynamic_sampling=kind in ("dynamic", "replay"),
        save=output / "saved" if kind == "dynamic" else None,
        replay=output / "saved" if kind in ("replay", "scored") else None,
    )
    options: dict[str, Any] = {
        "per_device_train_batch_size": 2,
        "ddp_timeout": 1900,
        "log_completions": True,
    }
    if kind == "scored":
        options |= {"per_device_train_batch_size": 6, "max_steps": 1, "scale_rewards": "batch"}
    trainer = make_trainer(
        rollouts,
        policy,
        output,
        faults=FAULTS[kind],
        options=options,
        trainer_class=RecordingTrainer,
        functions=[by_rank] if kind == "scored" else [],
    )
    error = ""
    try:
        trainer.train()
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
    outcome = {
        "completion_ids": rollouts.completion_ids,
        "log": trainer.state.log_history,
        "error": error,
        "table": trainer.table,
        "advantages": trainer.advantages,
    }
    rank = trainer.accelerator.process_index
    (output / f"rank-{rank}.json").write_text(json.dumps(outcome))
    barrier()  # a process that leaves while its peer still talks makes the peer abort
    destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
