"""The check of VeRL's data sets, over the files that its trainer reads."""

from pathlib import Path
from typing import Any

import pytest

from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.client.datasets import BadRows
from prorl_verl import task_payload
from prorl_verl.data import check_data
from prorl_verl.settings import settings_of
from tests.verl.data import row, write_rows
from tests.verl.test_settings import config


def ours(number: int, **data: Any) -> dict[str, Any]:
    payload = task_payload(task_id=f"q{number:02}", data=data)
    return {**row("1 + 2", index=number), "prorl": payload}


def sections(url: str, directory: Path, **data: Any) -> dict[str, Any]:
    found: dict[str, Any] = config(prorl__url=url, prorl__agent="math")
    found["data"] |= {
        "train_files": str(directory / "train.parquet"),
        "val_files": [str(directory / "val.parquet"), "hdfs://elsewhere/val.parquet"],
    }
    found["data"] |= data
    return found


def test_the_bad_rows_of_all_files_are_named_before_training(policy: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "train.parquet", [ours(0, answer="3"), ours(1), ours(2, answer=3)])
    long = {**ours(4, answer="3"), "prompt": [{"role": "user", "content": "1 + " * 30_000}]}
    write_rows(tmp_path / "val.parquet", [ours(3, answer="3"), long])
    with (
        local.engine(policy, log=tmp_path / "engine.log") as engine,
        local.service(
            [engine.url], log=tmp_path / "service.log", options=["--sandbox", "process"]
        ) as service,
    ):
        bad = sections(service.url, tmp_path)
        with pytest.raises(BadRows) as refused:
            check_data(bad, settings_of(bad))
        lines = [line.strip() for line in str(refused.value).splitlines()]
        train, val = tmp_path / "train.parquet", tmp_path / "val.parquet"
        assert lines[:3] == [
            "3 rows cannot be trained on:",
            f"{train}, row 2, task q01: data.answer: Field required",
            f"{train}, row 3, task q02: data.answer: Input should be a valid string",
        ]
        assert lines[3].startswith(f"{val}, row 2, task q04: messages: the prompt has ")
        # VeRL leaves out prompts that are too long.
        filtered = sections(service.url, tmp_path, filter_overlong_prompts=True)
        with pytest.raises(BadRows, match="2 rows"):
            check_data(filtered, settings_of(filtered))
        own = sections(service.url, tmp_path, custom_cls={"path": "own.py", "name": "Own"})
        check_data(own, settings_of(own))
        plain = {**row("1 + 2", index=0, ground_truth="3")}
        write_rows(tmp_path / "train.parquet", [plain])
        write_rows(tmp_path / "val.parquet", [plain])
        good = sections(service.url, tmp_path)
        check_data(good, settings_of(good))
        with RolloutClient(service.url) as client:
            assert not client.status().rollouts
