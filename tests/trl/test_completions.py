"""TRL's own table of completions, printed and as Parquet, for rollouts of the service."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from transformers import AutoTokenizer

from prorl_service.schemas import Rollout
from tests.trl.training import Trainings

pytestmark = pytest.mark.processes

LOGGED = {"log_completions": True, "max_steps": 1}


def table(train: Trainings, **options: Any) -> tuple[Any, list[Rollout]]:
    train(**options, options=LOGGED)
    return pd.read_parquet(train.output / "completions/completions_00001.parquet"), train.observed


def test_the_table_has_every_turn_what_answered_it_and_which_rollout_it_is(
    train_there: Trainings,
    policy: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    rows, observed = table(train_there, faults=["agent", *[None] * 7])
    assert "text" not in rows
    tokenizer = AutoTokenizer.from_pretrained(policy)
    for row, rollout in zip(rows.to_dict("records"), observed, strict=True):
        label = f"{rollout.rollout_id}\ntask {rollout.task_id}"
        if rollout.trajectory is None or rollout.error is not None:
            assert row["rollout"] == f"{label}\nfailed, blame agent: this agent always fails"
            continue
        assert row["rollout"] == label
        logged = row["completion"]
        completion = logged if isinstance(logged, str) else logged[0]["content"]  # by version
        assert "<tool_response>\ngo on\n</tool_response>" in completion
        segment = rollout.trajectory.segments[0]
        whole = tokenizer.decode(segment.response_ids, skip_special_tokens=True)
        assert completion == whole
        assert row["prorl_reward"] == pytest.approx(rollout.reward)
    assert "failed, blame" in capsys.readouterr().out


@pytest.mark.parametrize("why", ["other prompts", "a response template"])
def test_the_whole_text_is_there_where_trls_own_columns_would_be_wrong(
    train: Trainings, policy: Path, why: str
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(policy)
    if why == "other prompts":
        options: dict[str, Any] = {"dynamic_sampling": True, "faults": [None, "easy"] * 4}
    else:
        tokenizer.response_template = {"fields": {"content": {"open": "<a>", "close": "<b>"}}}
        options = {"processing_class": tokenizer}
    rows, observed = table(train, **options)
    for row, rollout in zip(rows.to_dict("records"), observed, strict=True):
        assert rollout.trajectory is not None
        segment = rollout.trajectory.segments[0]
        assert row["text"] == tokenizer.decode(segment.prompt_ids + segment.response_ids)
