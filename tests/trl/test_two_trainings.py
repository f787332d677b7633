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


def start(url: str, policy: Path, output: Path) -> subprocess.Popen[bytes]:
    output.mkdir()
    arguments = [url, str(policy), str(output), str(STEPS)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with (output / "log").open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.trl.solo", *arguments],
            env=environment,
            stdout=log,
            stderr=log,
        )


def last_line(output: Path) -> str:
    return (output / "log").read_text().strip().splitlines()[-1]


def steps(output: Path) -> list[dict[str, Any]]:
    path = output / "steps.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_second_training_is_refused_and_the_first_is_as_if_alone(
    other_url: str, policy: Path, tmp_path: Path
) -> None:
    lonely = start(other_url, policy, tmp_path / "alone")
    (tmp_path / "alone/go").touch()
    assert lonely.wait(WAIT_S) == 0
    first = start(other_url, policy, tmp_path / "first")
    while not steps(tmp_path / "first"):
        assert first.poll() is None
    second = start(other_url, policy, tmp_path / "second")
    assert second.wait(WAIT_S) == 1
    last = last_line(tmp_path / "second")
    assert f"pid {first.pid}" in last
    assert "the policy belongs to training" in last
    assert "take_over" in last
    assert steps(tmp_path / "second") == []
    (tmp_path / "first/go").touch()
    assert first.wait(WAIT_S) == 0
    assert steps(tmp_path / "first") == steps(tmp_path / "alone")
    assert len(steps(tmp_path / "first")) == STEPS


def test_a_training_that_lost_the_policy_ends_and_says_to_whom(
    other_url: str, policy: Path, tmp_path: Path
) -> None:
    first = start(other_url, policy, tmp_path / "first")
    while not steps(tmp_path / "first"):
        assert first.poll() is None
    with HeldPolicy(other_url, take_over=True) as held:
        (tmp_path / "first/go").touch()
        assert first.wait(WAIT_S) == 1
        assert held.training.training_id in last_line(tmp_path / "first")
    assert len(steps(tmp_path / "first")) < STEPS
