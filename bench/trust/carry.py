"""VeRL trains for three times the budget of the rollouts that it carries over.

`python -m bench.trust.carry`, in VeRL's environment, prints the figures as JSON. The stock command
runs on a CPU, synchronous, with engines that are lent to training; many epochs make updates long.
"""

import json
import tempfile
from pathlib import Path

from prorl_service import local
from prorl_service.client.datasets import task_payload
from tests.verl.data import build_policy, row, write_rows
from tests.verl.training import run_main_ppo

BUDGET_S = 4.5
STEPS = 4
TASKS = 64
PAUSES_S = (0.1, 3.0)
"""Time that rollouts take, in turns: the longer ones are carried over."""
EPOCHS = 180
OVERRIDES: dict[str, object] = {
    "--config-name": "prorl_ppo_trainer",
    "rollout": "prorl",
    "prorl.max_tokens_per_turn": 10,
    "prorl.limits.run_timeout_s": BUDGET_S,
    "prorl.dynamic_sampling.surplus": "carry",
    "prorl.dynamic_sampling.oversubscription": 3,
    "algorithm.filter_groups.enable": True,
    "algorithm.filter_groups.metric": "acc",
    "data.max_response_length": 40,
    "data.shuffle": False,
    "actor_rollout_ref.actor.ppo_epochs": EPOCHS,
    "trainer.total_training_steps": STEPS,
}
SERVICE = ["--sandbox", "process", "--agent", "tests.verl.shell_agent:ShellAgent"]


def measure() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        build_policy(directory / "model")
        rows = [_row(number) for number in range(TASKS)]
        write_rows(directory / "train.parquet", rows)
        write_rows(directory / "val.parquet", rows[:2])
        log = directory / "service.log"
        with local.service([], log=log, options=SERVICE) as service:
            run = run_main_ppo(directory, {**OVERRIDES, "prorl.url": service.url})
        timeouts = log.read_text().count("did not finish within")
    return {
        "verl_carry_timeouts": timeouts,
        "verl_carry_failed_groups": sum(run.values("prorl/sampling/failed")),
        "verl_carried_groups": sum(run.values("prorl/sampling/carried")),
        "verl_run_budget_s": BUDGET_S,
        "verl_training_phase_s": min(run.values("timing_s/update_actor")),
    }


def _row(number: int) -> dict[str, object]:
    data = {"pause_s": PAUSES_S[number % len(PAUSES_S)]}
    payload = task_payload(task_id=f"count-{number}", agent="shell", data=data)
    return row(f"count to {number}", index=number) | {"prorl": payload}


if __name__ == "__main__":
    print(json.dumps(measure()))
