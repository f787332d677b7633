"""Metrics of rollouts in VeRL's log."""

import json
from pathlib import Path
from typing import Any

import pytest
from verl.utils.tracking import Tracking

from prorl_service.client.metrics import Outcome, outcome_of
from prorl_service.schemas import Blame, ErrorInfo, FinishReason, RolloutState
from prorl_verl.measurements import Measurements, add_to_log
from tests.verl.test_rows import rollout_of, segment


def outcomes() -> list[Outcome]:
    error = ErrorInfo(kind="SandboxError", blame=Blame.SANDBOX, message="gone")
    failed = rollout_of([segment([1])], state=RolloutState.FAILED, error=error, reward=None)
    cut_off = rollout_of(
        [segment([1], version=2), segment([1], version=4)], finish_reason=FinishReason.LENGTH
    )
    return [outcome_of(failed), outcome_of(cut_off)]


def test_validation_is_kept_apart_and_each_rollout_counts_once() -> None:
    measurements = Measurements()
    measurements.add("train", outcomes(), newest_version=5)
    measurements.add("val", outcomes()[1:], newest_version=6)
    taken = measurements.take()
    assert taken["prorl/failed"] == taken["prorl/failed/sandbox"] == taken["prorl/overlong"] == 0.5
    assert taken["prorl/policy_lag"] == 3
    assert taken["val-prorl/failed"] == 0
    assert taken["val-prorl/policy_lag"] == 4
    assert taken["val-prorl/overlong"] == 1
    assert taken["prorl/reward"] == 0.5  # counted once, although the rollout has two rows
    assert measurements.take() == {}


def test_verls_log_contains_the_measurements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tracking, "log", Tracking.log)
    file = tmp_path / "log.jsonl"
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(file))
    tracking: Any = Tracking("project", "experiment", default_backend=["file"])
    measurements = Measurements()
    reports = list[tuple[int, dict[str, Any]]]()
    add_to_log(measurements.take, lambda *report: reports.append(report))
    measurements.add("train", outcomes(), newest_version=5)
    tracking.log(data={"loss": 1.0}, step=1)
    tracking.log(data={"loss": 2.0}, step=2)
    tracking.finish()
    first, second = [json.loads(line)["data"] for line in file.read_text().splitlines()]
    assert (first["loss"], first["prorl/failed"]) == (1.0, 0.5)
    assert second == {"loss": 2.0}
    assert reports == [(1, first), (2, second)]
