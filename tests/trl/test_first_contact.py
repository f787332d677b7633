"""What a user learns when rollouts are set up: before a model is loaded, and in a few lines."""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trl

from prorl_service import local
from prorl_service.errors import ProRLError
from prorl_trl import ProRLRollout, checks
from tests.trl.status_service import status_service
from tests.trl.training import dataset, make_trainer

NOBODY = f"http://127.0.0.1:{local.free_port()}"


def rollout(url: str, **options: Any) -> Any:
    return ProRLRollout(url, **options)


def worker(url: str, **options: Any) -> Any:
    from trl.experimental.async_grpo import AsyncGRPOConfig

    from prorl_trl.async_rollouts import ProRLRolloutWorker

    config = AsyncGRPOConfig(output_dir="unused", use_cpu=True, bf16=False, token_budget=0)
    return ProRLRolloutWorker(url, config, dataset([None]), **options)


HAS_WORKER = checks.TRL.supports(trl.__version__, "AsyncGRPOTrainer")
SETUPS = [rollout, worker] if HAS_WORKER else [rollout]


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "START_S", 0.1)


@pytest.mark.parametrize("set_up", SETUPS)
def test_a_service_that_cannot_be_used_is_refused_at_once(set_up: Callable[..., Any]) -> None:
    with pytest.raises(ProRLError, match=r"ConnectError: .*\n  check that the service runs there"):
        set_up(NOBODY)
    with status_service(token="secret") as url:
        with pytest.raises(ProRLError, match=r"401 Unauthorized: wrong token"):
            set_up(url, token="other")
        set_up(url, token="secret")
    with status_service(version="0.0.1") as url, pytest.raises(ProRLError) as refused:
        set_up(url)
    assert "is prorl-service 0.0.1, the trainer has" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"version": "9", "later_field": 1}, "is prorl-service 9, the trainer has"),
        ({"workers": None}, "must be of the same version"),
    ],
)
def test_a_status_of_another_version_is_refused_in_words(
    changed: dict[str, Any], words: str
) -> None:
    with status_service(**changed) as url, pytest.raises(ProRLError, match=words):
        rollout(url)


def test_only_the_main_process_has_to_reach_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    rollout(NOBODY)
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ProRLError):
        rollout(NOBODY)


def test_a_replay_needs_no_service(tmp_path: Path) -> None:
    assert ProRLRollout(NOBODY, replay=tmp_path)


def test_an_error_in_training_is_told_once_with_its_hint(policy: Path, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    rollouts = ProRLRollout(NOBODY, replay=tmp_path / "none")
    trainer = make_trainer(rollouts, policy, tmp_path, options={"max_steps": 1})
    with pytest.raises(ProRLError) as failed:
        trainer.train()
    text = "".join(traceback.format_exception(failed.value))
    assert "During handling" not in text
    assert "direct cause" not in text
    own = [line for line in text.splitlines() if "prorl_trl" in line and "File" in line]
    assert len(own) <= 1
    last = text.rstrip().splitlines()[-2:]
    assert "has no file such as step-000001.jsonl" in last[0]
    assert last[1].strip() == "name the directory that a training run had as `save`"
