"""Rows of tokens, as Parquet and JSONL, and training on exactly these tokens."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from prorl_service.exports import tokens
from prorl_service.exports.output import write_rows
from prorl_service.exports.transcript import ExportRecord
from prorl_service.schemas import Rollout
from tests.exports.made_rollouts import Made

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def rows(made: Made) -> list[tokens.Row]:
    return [row for one in made.rollouts for row in tokens.rows(ExportRecord(one))]


def segments(rollouts: list[Rollout]) -> list[tuple[Rollout, int]]:
    return [
        (one, number)
        for one in rollouts
        if one.trajectory is not None
        for number in range(len(one.trajectory.segments))
    ]


def test_a_row_is_a_segment_token_for_token(made: Made, rows: list[tokens.Row]) -> None:
    expected = segments(made.rollouts)
    assert len(rows) == len(expected) == 12
    for row, (rollout, number) in zip(rows, expected, strict=True):
        assert rollout.trajectory is not None
        segment = rollout.trajectory.segments[number]
        before = len(segment.prompt_ids)
        assert row["input_ids"] == segment.prompt_ids + segment.response_ids
        assert row["prompt_length"] == before
        assert row["loss_mask"] == [0] * before + segment.loss_mask
        assert row["logprobs"][before:] == segment.logprobs
        assert row["policy_versions"][before:] == segment.policy_versions
        for id_, label, mask in zip(row["input_ids"], row["labels"], row["loss_mask"], strict=True):
            assert label == (id_ if mask else tokens.IGNORED)
        assert (row["rollout_id"], row["segment"]) == (rollout.rollout_id, number)
        assert row["reward"] == rollout.reward


def test_exact_is_false_where_part_of_the_distribution_was_cut_off(
    rows: list[tokens.Row],
) -> None:
    assert {row["agent"] for row in rows if not row["exact"]} == {"letters"}  # top_p of 0.9


def test_parquet_has_every_row_in_compact_types(rows: list[tokens.Row], tmp_path: Path) -> None:
    file = tmp_path / "tokens.parquet"
    assert write_rows(rows, file, tokens.COLUMNS) == len(rows)
    table = pq.read_table(file)
    assert table.to_pylist() == [
        {**row, "logprobs": pytest.approx(row["logprobs"])} for row in rows
    ]
    types = {name: str(table.schema.field(name).type) for name in table.column_names}
    assert types["input_ids"] == types["policy_versions"] == "list<element: int32>"
    assert types["loss_mask"] == "list<element: int8>"
    assert types["logprobs"] == "list<element: float>"


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")
def test_trls_sft_trainer_trains_on_the_sampled_tokens_alone(
    made: Made, rows: list[tokens.Row], tmp_path: Path
) -> None:
    from datasets import load_dataset
    from trl import SFTConfig, SFTTrainer

    file = tmp_path / "tokens.parquet"
    write_rows(rows, file, tokens.COLUMNS)
    dataset = load_dataset("parquet", data_files=str(file), split="train", cache_dir=str(tmp_path))
    trainer = SFTTrainer(
        model=str(made.model),
        args=SFTConfig(
            output_dir=str(tmp_path),
            max_steps=1,
            max_length=None,
            use_cpu=True,
            bf16=False,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=dataset,
    )
    for row, trained in zip(rows, trainer.train_dataset, strict=True):
        assert trained["input_ids"] == row["input_ids"]
        assert trained["labels"] == row["labels"]
    trainer.train()
