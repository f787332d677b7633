"""A training with VeRL in a process of its own: `python -m tests.verl.solo URL OUTPUT`.

Writes to OUTPUT/steps.jsonl, at its end, a line for each step: prompt, answer and reward of all
rows. Seeds are fixed, so two runs write the same, though VeRL's updates on a CPU differ in their
last bits from run to run. Its rollouts wait for the file OUTPUT/go.
"""

import json
import sys
from pathlib import Path

from tests.verl.data import build_policy
from tests.verl.test_training import train, write_tasks

STEPS = 3


def main(url: str, output: Path) -> None:
    build_policy(output / "model")
    write_tasks(output, *[{"wait_for": str(output / "go")}] * 16)
    (output / "began").touch()
    train(
        output,
        url,
        trainer__total_training_steps=STEPS,
        trainer__rollout_data_dir=output / "dump",
        # VeRL takes groups as they end: of several, the order is chance.
        data__train_batch_size=1,
        actor_rollout_ref__actor__ppo_mini_batch_size=1,
        data__custom_cls__path=Path(__file__).with_name("meddling.py"),
        data__custom_cls__name="Seeded",
    )
    steps = [_rows(output / f"dump/{step}.jsonl") for step in range(1, STEPS + 1)]
    (output / "steps.jsonl").write_text("".join(f"{json.dumps(step)}\n" for step in steps))


def _rows(dumped: Path) -> list[list[object]]:
    rows = [json.loads(line) for line in dumped.read_text().splitlines()]
    return [[row["input"], row["output"], row["score"]] for row in rows]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
