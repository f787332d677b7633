"""`python -m recipes.math_code.train model=tiny trainer=verl`: VeRL's stock command.

Runs in the environment of `scripts/test-verl`.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.recipes.commands import running
from tests.recipes.math_code.runs import LORA, QUICK, check_trained, check_weights_changed, given
from tests.verl.training import worker_command

pytestmark = pytest.mark.timeout(1800)

TRAIN = "recipes.math_code.train"
RAY = "cluster.arguments.verl.ray_kwargs.ray_init"
EXACT = 1e-5
"""Largest difference of a probability between engine and trainer, in fp32."""
ROUNDED = 1e-2
"""The same if VeRL sends merged adapters, in bf16."""


@pytest.mark.parametrize(
    ("task", "others", "difference"),
    [
        ("math", (), EXACT),
        pytest.param("code", LORA, ROUNDED, marks=pytest.mark.on_demand),
        pytest.param("look", (), EXACT, marks=pytest.mark.on_demand),
    ],
    ids=["all", "lora", "look"],
)
def test_problems_are_trained_on(
    task: str, others: Sequence[str], difference: float, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    with TemporaryDirectory(prefix="ray-") as ray_directory:  # its sockets' paths must be short
        overrides = [
            *(*given(task, tmp_path), "trainer=verl", *QUICK, *others),
            f"+{RAY}._temp_dir={ray_directory}",
            f"+{RAY}.runtime_env.py_executable={worker_command()}",
        ]
        with running(TRAIN, tmp_path / "log", *overrides) as command:
            assert command.wait() == 0, command.said
            assert command.survivors() == []
    check_trained(task, output, last_step=2)
    [run] = (output / "runs").iterdir()
    lines = (run / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["data"] for line in lines]
    assert all(one["actor/grad_norm"] > 0 for one in steps)
    assert steps[0]["training/rollout_probs_diff_max"] < difference
    check_weights_changed(output, merged(output / "checkpoints/global_step_2/actor"))


def merged(checkpoint: Path) -> Path:
    """Returns the checkpoint's model, merged by the command that the recipe's docs name."""
    target = checkpoint.parent / "merged"
    command = [sys.executable, "-m", "verl.model_merger", "merge", "--backend", "fsdp"]
    command += ["--local_dir", str(checkpoint), "--target_dir", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target
