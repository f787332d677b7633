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

from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.client.saved import read_rollouts

pytestmark = pytest.mark.processes

CHANGED = "model.layers.0.self_attn.q_proj.weight"


def run_on_two(module: str, *arguments: str) -> None:
    """Runs `module` in two processes that torchrun starts on the CPU."""
    # torchrun listens before it announces its port: no other process can take the port in between.
    launch = ["torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    environment = os.environ | {
        "ACCELERATE_USE_CPU": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-m", *launch, "-m", module, *arguments]
    ended = subprocess.run(
        command, env=environment, timeout=120, check=False, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr[-20_000:]


def train_on_two(url: str, policy: Path, output: Path, kind: str) -> list[dict[str, Any]]:
    """Returns what each process wrote."""
    run_on_two("tests.trl.worker", url, str(policy), str(output), kind)
    return [json.loads((output / f"rank-{rank}.json").read_text()) for rank in (0, 1)]


def test_one_group_is_split_over_two_processes_and_both_see_its_failure(
    service_url: str, policy: Path, tmp_path: Path
) -> None:
    with RolloutClient(service_url) as client:
        before = client.status().rollouts
        first, second = train_on_two(service_url, policy, tmp_path, "failing")
        assert client.status().rollouts == before  # all received rollouts were acknowledged
    assert first["error"].startswith("RolloutsFailed: 4 of 4 rollouts failed")
    assert second["error"] == f"RuntimeError: on the main process: {first['error']}"
    rows = first["completion_ids"] + second["completion_ids"]
    assert len(rows) == 4
    assert len({tuple(row) for row in rows}) == 4
    assert first["log"][0]["sampling/sampling_logp_difference/max"] < 1e-4
    assert first["log"][0]["prorl/turns"] == 2


def test_an_informative_group_is_drawn_once_for_both_processes_and_replayed_to_both(
    service_url: str, policy: Path, tmp_path: Path
) -> None:
    first, second = train_on_two(service_url, policy, tmp_path, "dynamic")
    assert [first["error"], second["error"]] == ["", ""]
    assert len({tuple(row) for row in first["completion_ids"] + second["completion_ids"]}) == 4
    assert [entry["frac_reward_zero_std"] for entry in first["log"][:2]] == [0, 0]
    table = pd.read_parquet(tmp_path / "completions/completions_00002.parquet")
    saved = [*read_rollouts(tmp_path / "saved/step-000002.jsonl")]
    assert [label.split("\n")[0] for label in table["rollout"]] == [one.rollout_id for one in saved]

    again = train_on_two(f"http://127.0.0.1:{local.free_port()}", policy, tmp_path, "replay")
    for before, after in zip((first, second), again, strict=True):
        assert after["error"] == ""
        assert after["completion_ids"] == before["completion_ids"]
        for name in ("loss", "grad_norm"):
            values = [[entry.get(name) for entry in one["log"][:2]] for one in (before, after)]
            assert values[0] == values[1] != [None, None]


def test_sharded_weights_are_gathered_under_the_checkpoints_names(
    policy: Path, tmp_path: Path
) -> None:
    run_on_two("tests.trl.sharded_worker", str(policy), str(tmp_path))
    checkpoint = load_file(policy / "model.safetensors")
    expected = {name: tensor.float() for name, tensor in checkpoint.items()}
    for name in ("model", "model-again"):
        assert_equal(load_file(tmp_path / f"{name}.safetensors"), expected)

    saved = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert_equal(load_file(tmp_path / "adapter.safetensors"), saved)
    adapted = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32), tmp_path / "adapter"
    )
    merged = adapted.merge_and_unload().state_dict()
    gathered = load_file(tmp_path / "merged.safetensors")
    assert gathered.keys() == expected.keys()
    assert not torch.equal(gathered[CHANGED], expected[CHANGED])
    for name, tensor in gathered.items():
        torch.testing.assert_close(tensor, merged[name], rtol=0, atol=1e-6)


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in other)
