"""A training with VeRL in a process of its own: `python -m tests.verl.solo URL OUTPUT`.

Writes to OUTPUT/steps.jsonl, at its end, a digest of the weights that each step made. Seeds are
fixed, so two runs write the same. Its rollouts wait for the file OUTPUT/go.
"""

import json
import sys
from pathlib import Path

from tests.verl.data import build_policy
from tests.verl.test_training import train, write_tasks
from tests.verl.training import weights_given


def main(url: str, output: Path) -> None:
    build_policy(output / "model")
    write_tasks(output, *[{"wait_for": str(output / "go")}] * 16)
    (output / "began").touch()
    run = train(output, url, trainer__total_training_steps=3)
    lines = [json.dumps([step, digest]) for step, digest in weights_given(run).items()]
    (output / "steps.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
