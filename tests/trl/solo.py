"""A training in a process of its own: `python -m tests.trl.solo URL POLICY OUTPUT STEPS`.

Writes to OUTPUT/steps.jsonl, after each step, what the step trained on: a line of JSON with the
sampled ids, and a digest of the policy. Seeds are fixed, so two runs write the same. After the
first step it waits for the file OUTPUT/go.
"""

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from prorl_service.schemas import Sampling
from tests.trl.training import RecordingRollout, make_trainer


class Steps(TrainerCallback):  # type: ignore[misc]
    def __init__(self, rollouts: RecordingRollout, output: Path) -> None:
        self._rollouts, self._output = rollouts, output

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
        digest = hashlib.sha256()
        for tensor in model.state_dict().values():
            digest.update(tensor.detach().cpu().numpy().tobytes())
        step = {"ids": self._rollouts.completion_ids, "policy": digest.hexdigest()}
        with self._output.open("a") as file:
            file.write(json.dumps(step) + "\n")
        while not self._output.with_name("go").exists():
            time.sleep(0.05)


def main(url: str, policy: Path, output: Path, steps: int) -> None:
    sampling = Sampling(max_tokens_per_turn=8, seed=7)
    # The engine's logprobs differ in their last bits with what else is in a batch.
    rollouts = RecordingRollout(
        url, overlong="keep", sampling=sampling, deadline_s=60, importance_sampling="off"
    )
    options = {"max_steps": steps, "per_device_train_batch_size": 4, "seed": 7}
    trainer = make_trainer(rollouts, policy, output, options=options)
    trainer.add_callback(Steps(rollouts, output / "steps.jsonl"))
    (output / "began").touch()
    trainer.train()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
