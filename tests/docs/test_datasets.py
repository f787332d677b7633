"""The rows of docs/tasks.md, verl.md and harbor.md, made as they print."""

import shlex
import sys
from pathlib import Path
from typing import Any

import pandas
import pytest

from prorl_service.client.datasets import task_from
from prorl_trl.convert import task_of
from scripts.documentation.pages import ROOT
from tests.cli.try_process import done
from tests.docs.printed import blocks
from tests.trl.status_service import status_service

pytestmark = pytest.mark.processes

PRORL = [sys.executable, "-m", "prorl_service.cli"]

_, TASKS, TRL, VERL = blocks("tasks.md", "python")
ROWS = "id,question,answer\na,What is 2 plus 3?,5\nb,What is 4 plus 4?,8\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.csv").write_text(ROWS)
    (tmp_path / "test.csv").write_text(ROWS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_rows_for_trl_hold_the_tasks(here: Path) -> None:
    names: dict[str, Any] = {}
    with status_service() as url:
        exec((TASKS + TRL).replace("http://localhost:8080", url), names)
    rows = names["spec"].train_dataset
    tasks = [task_of(row["prompt"], default_agent=None) for row in rows]
    assert [(task.task_id, task.data) for task in tasks] == [
        ("a", {"answer": "5"}),
        ("b", {"answer": "8"}),
    ]


def test_rows_for_verl_hold_the_tasks(here: Path) -> None:
    exec(TASKS + VERL, {})
    rows = pandas.read_parquet("train.parquet")
    task = task_from(rows["prompt"][1], rows["prorl"][1], default_agent=None, no_agent_hint="")
    assert (task.task_id, task.agent, task.data) == ("b", "math", {"answer": "8"})


def test_a_row_of_verl_gets_a_task() -> None:
    names: dict[str, Any] = {"row": {}}
    exec(blocks("verl.md", "python")[0], names)
    task = task_from(
        [{"role": "user", "content": "17 * 3?"}],
        names["row"]["prorl"],
        default_agent=None,
        no_agent_hint="",
    )
    assert (task.agent, task.image, task.data) == ("math", "python:3.12", {"answer": "51"})


def test_directories_of_harbor_become_rows(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRORL_CACHE", str(here / "cache"))
    command = shlex.split(blocks("harbor.md", "sh")[2], comments=True)
    assert command == ["prorl", "harbor", "tasks", "DIR", "-o", "tasks.jsonl"]
    examples = str(ROOT / "examples" / "harbor")
    ended = done([*PRORL, "harbor", "tasks", examples, "-o", "tasks.jsonl"], here)
    assert ended.returncode == 0, ended.stderr
    names: dict[str, Any] = {}
    exec(blocks("harbor.md", "python")[0], names)
    tasks = [task_of(row["prompt"], default_agent=None) for row in names["rows"]]
    assert {task.agent for task in tasks} == {"harbor"}
    assert "word-count" in str([task.task_id for task in tasks])
