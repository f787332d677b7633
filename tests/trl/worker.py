"""One of several training processes, started by torchrun: `worker.py URL POLICY OUTPUT KIND ...`.

Trains once for each KIND, and writes what this process was given, how training ended, and by how
much the service's counts of rollouts have changed, to OUTPUT/KIND/rank-N.json. "failing": the
second step fails as a whole; "dynamic": half of the tasks teach nothing; "replay": what "dynamic"
saved, again; "scored": a step in OUTPUT/scored/saved, with another reward function. In the end,
`sharded_weights` writes to OUTPUT/sharded.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from torch.distributed import barrier, destroy_process_group

from prorl_service.client import RolloutClient
from prorl_service.schemas import Sampling
from tests.trl import sharded_weights
from tests.trl.training import RecordingRollout, RecordingTrainer, make_trainer

NOBODY = "http://127.0.0.1:1"
RANK = int(os.environ["RANK"])
SAVED = {"dynamic": "dynamic", "replay": "dynamic", "scored": "scored"}
"""Kind in whose directory the rollouts of each are."""


def by_rank(completion_ids: list[list[int]], **_: Any) -> list[float]:
    return [RANK + 5 / len(ids) for ids in completion_ids]


HALF_EASY: list[str | None] = ["easy", None]
FAULTS: dict[str, list[str | None]] = {
    "failing": [None, "agent"],
    "dynamic": HALF_EASY,
    "replay": HALF_EASY,
    "scored": [None] * 3,
}


def train(url: str, policy: Path, output: Path, kind: str) -> None:
    is_replay = kind in ("replay", "scored")
    saved = output / SAVED[kind] / "saved" if kind in SAVED else None
    rollouts = RecordingRollout(
        NOBODY if is_replay else url,
        overlong="keep",
        sampling=Sampling(max_tokens_per_turn=8),
        dynamic_sampling=kind in ("dynamic", "replay"),
        save=None if is_replay else saved,
        replay=saved if is_replay else None,
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
        output / kind,
        faults=FAULTS[kind],
        options=options,
        trainer_class=RecordingTrainer,
        functions=[by_rank] if kind == "scored" else [],
    )
    error, before = "", counts(url)
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
        "counts": [before, counts(url)],
    }
    (output / kind).mkdir(exist_ok=True)
    (output / kind / f"rank-{RANK}.json").write_text(json.dumps(outcome))
    barrier()  # a process that leaves while its peer still talks makes the peer abort


def counts(url: str) -> dict[str, int]:
    with RolloutClient(url) as client:
        return {str(state): count for state, count in client.status().rollouts.items()}


def main(url: str, policy: Path, output: Path, *kinds: str) -> None:
    for kind in kinds:
        train(url, policy, output, kind)
    sharded_weights.write(policy, output / "sharded")
    barrier()
    destroy_process_group()
    os._exit(0)  # gloo's threads sometimes abort a process that exits normally


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])
