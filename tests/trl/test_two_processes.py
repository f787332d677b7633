"""Trainings in two processes, one after the other, and weights in shards."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from prorl_service.client.saved import read_rollouts
from tests.trl import made_rollouts
from tests.trl.test_scorable import by_hand, made_step

pytestmark = pytest.mark.processes

CHANGED = "model.layers.0.self_attn.q_proj.weight"


Outcomes = list[dict[str, Any]]
"""What each process wrote."""
FAILURES = [None, "agent", "cancelled", None, *[None] * 3, "task", "backend", *[None] * 3]
KINDS = ("failing", "dynamic", "replay", "scored")


@pytest.fixture(scope="module")
def output(service_url: str, policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns what two processes wrote, which torchrun started on the CPU."""
    output = tmp_path_factory.mktemp("two")
    for kind in KINDS:
        (output / kind).mkdir()
    made_rollouts.save(output / "scored/saved", made_step(policy, FAILURES))
    # torchrun listens before it announces its port: no other process can take the port in between.
    launch = ["torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    environment = os.environ | {
        "ACCELERATE_USE_CPU": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    arguments = [service_url, str(policy), str(output), *KINDS]
    command = [sys.executable, "-m", *launch, "-m", "tests.trl.worker", *arguments]
    ended = subprocess.run(
        command, env=environment, timeout=240, check=False, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr[-20_000:]
    return output


@pytest.fixture(scope="module")
def outcomes(output: Path) -> dict[str, Outcomes]:
    return {
        kind: [json.loads((output / kind / f"rank-{rank}.json").read_text()) for rank in (0, 1)]
        for kind in KINDS
    }


def test_one_group_is_split_over_two_processes_and_both_see_its_failure(
    outcomes: dict[str, Outcomes],
) -> None:
    first, second = outcomes["failing"]
    before, after = first["counts"]
    assert after == before  # all received rollouts were acknowledged
    assert first["error"].startswith("RolloutsFailed: 4 of 4 rollouts failed")
    assert second["error"] == f"RuntimeError: on the main process: {first['error']}"
    rows = first["completion_ids"] + second["completion_ids"]
    assert len(rows) == 4
    assert len({tuple(row) for row in rows}) == 4
    assert first["log"][0]["sampling/sampling_logp_difference/max"] < 1e-4
    assert first["log"][0]["prorl/turns"] == 2


def test_an_informative_group_is_drawn_once_for_both_processes_and_replayed_to_both(
    outcomes: dict[str, Outcomes], output: Path
) -> None:
    first, second = outcomes["dynamic"]
    assert [first["error"], second["error"]] == ["", ""]
    assert len({tuple(row) for row in first["completion_ids"] + second["completion_ids"]}) == 4
    assert [entry["frac_reward_zero_std"] for entry in first["log"][:2]] == [0, 0]
    table = pd.read_parquet(output / "dynamic/completions/completions_00002.parquet")
    saved = [*read_rollouts(output / "dynamic/saved/step-000002.jsonl")]
    assert [label.split("\n")[0] for label in table["rollout"]] == [one.rollout_id for one in saved]

    for before, after in zip((first, second), outcomes["replay"], strict=True):
        assert after["error"] == ""
        assert after["completion_ids"] == before["completion_ids"]
        for name in ("loss", "grad_norm"):
            values = [[entry.get(name) for entry in one["log"][:2]] for one in (before, after)]
            assert values[0] == values[1] != [None, None]


def test_groups_that_are_split_over_two_processes_leave_the_same_rows_out(
    outcomes: dict[str, Outcomes],
) -> None:
    """Both processes have the same table, in the same order, whichever rows are theirs."""
    first, second = outcomes["scored"]
    assert (first["error"], second["error"]) == ("", "")
    table, failed = first["table"], [failure is not None for failure in FAILURES]
    assert [one[1] >= 2 for one in table] == [number >= 6 or failed[number] for number in range(12)]
    expected = by_hand(table, failed, {"scale_rewards": "batch"})
    advantages = first["advantages"] + second["advantages"]
    assert advantages == pytest.approx(expected, abs=2e-4, rel=1e-3)


def test_sharded_weights_are_gathered_under_the_checkpoints_names(
    policy: Path, output: Path
) -> None:
    output = output / "sharded"
    checkpoint = load_file(policy / "model.safetensors")
    expected = {name: tensor.float() for name, tensor in checkpoint.items()}
    for name in ("model", "model-again"):
        assert_equal(load_file(output / f"{name}.safetensors"), expected)

    saved = load_file(output / "adapter" / "adapter_model.safetensors")
    assert_equal(load_file(output / "adapter.safetensors"), saved)
    adapted = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32), output / "adapter"
    )
    merged = adapted.merge_and_unload().state_dict()
    gathered = load_file(output / "merged.safetensors")
    assert gathered.keys() == expected.keys()
    assert not torch.equal(gathered[CHANGED], expected[CHANGED])
    for name, tensor in gathered.items():
        torch.testing.assert_close(tensor, merged[name], rtol=0, atol=1e-6)


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in other)
