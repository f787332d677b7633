"""A second training on the same service: refused, and the first one never learns of it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prorl_service.client.policy import HeldPolicy

pytestmark = pytest.mark.processes

STEPS = 3
WAIT_S = 300


def start(url: str, policy: Path, output: Path) -> subprocess.Popen[str]:
    output.mkdir()
    arguments = [url, str(policy), str(output), str(STEPS)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.trl.solo", *arguments],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )


def steps(output: Path) -> list[dict[str, Any]]:
    path = output / "steps.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_second_training_is_refused_and_the_first_is_as_if_alone(
    service_url: str, policy: Path, tmp_path: Path
) -> None:
    alone = start(service_url, policy, tmp_path / "alone")
    (tmp_path / "alone/go").touch()
    assert alone.wait(WAIT_S) == 0
    first = start(service_url, policy, tmp_path / "first")
    while not steps(tmp_path / "first"):
        assert first.poll() is None
    second = start(service_url, policy, tmp_path / "second")
    _, said = second.communicate(timeout=WAIT_S)
    assert second.returncode == 1
    last = said.strip().splitlines()[-1]
    assert f"pid {first.pid}" in last
    assert "the policy belongs to training" in last
    assert "take_over" in last
    assert steps(tmp_path / "second") == []
    (tmp_path / "first/go").touch()
    assert first.wait(WAIT_S) == 0
    assert steps(tmp_path / "first") == steps(tmp_path / "alone")
    assert len(steps(tmp_path / "first")) == STEPS


def test_a_training_that_lost_the_policy_ends_and_says_to_whom(
    service_url: str, policy: Path, tmp_path: Path
) -> None:
    first = start(service_url, policy, tmp_path / "first")
    while not steps(tmp_path / "first"):
        assert first.poll() is None
    with HeldPolicy(service_url, take_over=True) as held:
        (tmp_path / "first/go").touch()
        _, said = first.communicate(timeout=WAIT_S)
        assert first.returncode == 1
        assert held.training.training_id in said.strip().splitlines()[-1]
    assert len(steps(tmp_path / "first")) < STEPS
