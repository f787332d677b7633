"""`prorl judge`, as its users run it, on a judge over real HTTP."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prorl_service.testing import StubJudge
from tests.cli.called import called, printed
from tests.rewards.test_rubric import honest

pytestmark = pytest.mark.usefixtures("at_once")

ROWS: list[dict[str, Any]] = [
    {"answer": "rain", "labels": [True, False, False]},
    {"answer": "rain and wind", "labels": [True, True, False], "id": 7},
    {"answer": "nonsense", "labels": [False, True, True], "reference": "It rains."},
    {"answer": "rain", "labels": [True, False, False]},
]


@pytest.fixture
def judge() -> Iterator[StubJudge]:
    with StubJudge(honest).in_thread() as stub:
        yield stub


def rows_in(directory: Path, *rows: dict[str, Any]) -> Path:
    rubric = [
        {"criterion": "It says rain.", "weight": 3},
        {"criterion": "It says wind."},
        {"criterion": "It says nonsense.", "weight": -2},
    ]
    whole = [{"question": "How is the weather?", "rubric": rubric, **row} for row in rows]
    file = directory / "labelled.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in whole))
    return file


def test_a_table_has_each_judge_and_all_of_them(judge: StubJudge, tmp_path: Path) -> None:
    file = rows_in(tmp_path, *ROWS)
    options = ("--judge-url", judge.url, "--judge-model", "one", "--judge-model", "two")
    header, *lines, last = printed("judge", file, *options).splitlines()
    assert header.split() == ["judge", "verdicts", "accuracy", "kappa", "reward", "off", "by"]
    figures = ["12", "0.917", "0.833", "0.062"]
    assert [line.split()[-4:] for line in lines] == [figures] * 3
    assert [line.split("  ")[0] for line in lines] == ["one", "two", "all, averaged"]
    assert last == "4 answers, 6 calls, 2 remembered"


def test_json_has_the_same_and_a_cache_spares_calls(judge: StubJudge, tmp_path: Path) -> None:
    file = rows_in(tmp_path, *ROWS)
    options = ("--judge-url", judge.url, "--judge-model", "one", "--judge-cache", tmp_path / "c")
    first, second = (json.loads(printed("judge", file, *options, "--json")) for _ in range(2))
    assert (first["answers"], first["failed"], first["calls"]) == (4, 0, 3)
    assert (second["calls"], second["remembered"]) == (0, 4)
    assert first["judges"] == second["judges"]
    assert first["judges"]["one"] == {
        "verdicts": 12,
        "accuracy": pytest.approx(11 / 12),
        "kappa": pytest.approx(10 / 12),
        "reward_difference": pytest.approx(0.25 / 4),
    }


def test_answers_that_a_judge_fails_on_count_nowhere(judge: StubJudge, tmp_path: Path) -> None:
    file = rows_in(tmp_path, *ROWS[:3])
    options = ("--judge-url", judge.url, "--judge-model", "one", "--judge-max-calls", 1)
    done = called("judge", file, *options, "--judge-budget", 2)
    assert done.returncode == 1
    assert done.stdout.splitlines()[1].split() == ["one", "6", "1.000", "1.000", "0.000"]
    assert "row 3: the judge's budget of 2 calls is used up" in done.stderr
    assert "1 answer could not be judged" in done.stderr
    judge.statuses = [401] * 3
    done = called("judge", file, *options)
    assert done.returncode == 1
    assert done.stdout == "3 answers, 3 calls, 0 remembered\n"
    assert "it answered 401" in done.stderr


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"answer": "x", "labels": [True]}, "line 2: labels: 1 for 3 criteria"),
        ({"answer": "x"}, "line 2: labels: Field required"),
        ({"answer": "x", "labels": [], "rubric": []}, "line 2: rubric: List should have"),
    ],
)
def test_bad_rows_are_named_before_a_judge_is_asked(
    tmp_path: Path, row: dict[str, Any], problem: str
) -> None:
    file = rows_in(tmp_path, ROWS[0], row)
    done = called("judge", file, "--judge-url", "http://127.0.0.1:9/v1", "--judge-model", "one")
    assert done.returncode == 2
    assert problem in done.stderr


def test_no_judge_and_no_rows_are_said(tmp_path: Path) -> None:
    assert "name a judge" in called("judge", rows_in(tmp_path, *ROWS)).stderr
    options = ("--judge-url", "http://127.0.0.1:9/v1", "--judge-model", "one")
    assert "has no rows" in called("judge", rows_in(tmp_path), *options).stderr
