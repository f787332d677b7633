"""Input of a run of verl: a tiny policy with its tokenizer, and tasks as parquet files.

Nothing here knows the service; columns other than verl's own go into `extra_info` as they are.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from prorl_service.inference.reference_engine.tiny import build_tiny_model


def build_policy(directory: Path) -> Path:
    """Builds a policy with random weights, whose noise some rewards can tell apart."""
    build_tiny_model(directory, initializer_range=0.1)
    return directory


def row(
    content: str,
    *,
    index: int,
    ground_truth: str = "",
    data_source: str = "tiny",
    extra_info: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns one task in the columns that verl's dataset and reward managers read."""
    return {
        "prompt": [{"role": "user", "content": content}],
        "data_source": data_source,
        "reward_model": {"style": "rule", "ground_truth": ground_truth},
        "extra_info": {"index": index} | (extra_info or {}),
    }


def write_rows(file: Path, rows: Sequence[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(list(rows)), file)
    return file


def write_counting_tasks(directory: Path, count: int = 16) -> None:
    """Writes `train.parquet` and `val.parquet`."""
    rows = [row(f"count to {number}", index=number) for number in range(count)]
    write_rows(directory / "train.parquet", rows)
    write_rows(directory / "val.parquet", rows[:4])
