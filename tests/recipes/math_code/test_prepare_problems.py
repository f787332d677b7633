"""Preparation of a data set: what is kept, what is rejected and counted, and what can go wrong."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from prorl_service.errors import ProRLError
from recipes.math_code.prepare import Manifest, Options, prepare
from recipes.math_code.rows import MathProblem, read_rows
from tests.recipes.math_code import published_problems as published
from tests.recipes.math_code.published_problems import Fields

pytestmark = pytest.mark.processes


def given(directory: Path, *rows: Fields) -> Path:
    path = directory / "given.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def options(directory: Path, path: Path, **changed: Any) -> Options:
    common = {"dataset": "deepscaler", "output": directory / "out", "path": path, "workers": 1}
    return Options(**{**common, **changed})


def questions(directory: Path) -> list[str]:
    return [problem.question for problem in read_rows(directory / "out/rows.jsonl")]


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_answers_that_cannot_be_scored_are_rejected(tmp_path: Path) -> None:
    rows = given(
        tmp_path,
        published.deepscaler("one", "\\frac{1}{2}"),
        published.deepscaler("two", "9^{9^{9}}"),
        published.deepscaler("three", "{" * 50 + "1" + "}" * 50),
        published.deepscaler("four", "2n+1, n \\in \\mathbb{N}"),
        published.deepscaler("five", "1+" * 2000 + "1"),
        published.deepscaler("six", "(3, \\infty)"),
        published.deepscaler("seven", "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}"),
        published.deepscaler("eight", "\\text{no solution}"),
    )
    manifest = await prepare(options(tmp_path, rows))
    assert questions(tmp_path) == ["one", "six", "seven", "eight"]
    assert manifest.problems == 4
    rejected = {one["instance"]: one["reason"] for one in lines(tmp_path / "out/rejected.jsonl")}
    assert rejected == {
        "row 2": "the answer cannot be compared in time",
        "row 3": "the answer cannot be compared in time",
        "row 4": "math-verify cannot read the answer",
        "row 5": "math-verify does not find the answer equal to itself",
    }


async def test_a_question_is_kept_once_and_only_if_its_answers_agree(tmp_path: Path) -> None:
    rows = given(
        tmp_path,
        published.deepscaler("half", "\\frac{1}{2}"),
        published.deepscaler("sum", "5"),
        published.deepscaler("half", "0.5"),
        published.deepscaler(" sum\n", "6"),
        published.deepscaler("sum", "5"),
        published.deepscaler("one", "1"),
    )
    manifest = await prepare(options(tmp_path, rows))
    assert questions(tmp_path) == ["half", "one"]
    assert (manifest.problems, manifest.repeated, manifest.rows_read) == (2, 2, 6)
    reason = "the question occurs again with another answer"
    assert manifest.rejected == {reason: 2}
    details = [one["detail"] for one in lines(tmp_path / "out/rejected.jsonl")]
    assert details[0].startswith(f"row 4: {reason}: that of deepscaler-")
    assert details[1].endswith(f": {reason}: that of row 4")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        f"answers-{version('math-verify')}.jsonl",
        "manifest.json",
        "rejected.jsonl",
        "rows.jsonl",
    ]


async def test_a_second_run_gives_the_same_result(tmp_path: Path) -> None:
    path = tmp_path / "given.parquet"
    rows = [published.dapo(f"Find ${n % 7}$.", str(n % 7)) for n in range(200)]
    Dataset.from_list(rows).to_parquet(str(path))
    first = await prepare(options(tmp_path, path, dataset="dapo_math_17k"))
    written = (tmp_path / "out/rows.jsonl").read_bytes()
    assert (first.rows_read, first.problems, first.repeated) == (200, 7, 193)
    assert first.revision.startswith("sha256:")
    assert set(first.versions) == {"python", "prorl-service", "datasets", "pydantic", "math-verify"}
    assert await prepare(options(tmp_path, path, dataset="dapo_math_17k")) == first
    assert (tmp_path / "out/rows.jsonl").read_bytes() == written
    manifest = (tmp_path / "out/manifest.json").read_text()
    assert Manifest.model_validate_json(manifest) == first
    with pytest.raises(ProRLError, match="out holds dapo_math_17k"):
        await prepare(options(tmp_path, path))


async def test_checks_of_answers_are_not_repeated(tmp_path: Path) -> None:
    rows = given(
        tmp_path, published.deepscaler("one", "\\sqrt{2}"), published.deepscaler("two", "\\sqrt{3}")
    )
    first = await prepare(options(tmp_path, rows))
    [file] = (tmp_path / "out").glob("answers-*.jsonl")
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        ["math", "\\sqrt{2}", ""],
        ["math", "\\sqrt{3}", ""],
    ]
    # A complete line is believed without a second check; an answer whose line was cut is checked.
    file.write_text(json.dumps(["math", "\\sqrt{2}", "it was bad"]) + '\n["math", "\\\\sq')
    assert first.problems == 2
    assert (await prepare(options(tmp_path, rows))).rejected == {"it was bad": 1}
    assert questions(tmp_path) == ["two"]


async def test_both_parts_of_eurus_come_from_the_same_files(tmp_path: Path) -> None:
    again = {"inputs": ["1 1\n"], "outputs": ["2\n"]}
    path = tmp_path / "given.parquet"
    rows = [
        published.eurus_math(),
        published.eurus_code(),
        published.eurus_code(tests=again),
        published.eurus_code("Print it.", {"inputs": ["1"], "outputs": ["1"]}),
    ]
    Dataset.from_list(rows).to_parquet(str(path))
    code = await prepare(options(tmp_path, path, dataset="eurus_code"))
    assert (code.problems, code.repeated, code.other_rows) == (2, 1, 1)
    separate = options(tmp_path, path, dataset="eurus_math", output=tmp_path / "mathematics")
    mathematics = await prepare(separate)
    assert (mathematics.problems, mathematics.other_rows) == (1, 3)


async def test_questions_from_evaluation_sets_are_kept_out(tmp_path: Path) -> None:
    aime = given(tmp_path, published.aime24("Find $m + n$ for\nall $X$."))
    evaluation = tmp_path / "aime"
    await prepare(options(tmp_path, aime, dataset="aime24", output=evaluation))
    rows = given(
        tmp_path,
        published.deepscaler("Find \\(m+n\\), for all \\(x\\)"),
        published.deepscaler("Find \\(m+k\\), for all \\(x\\)"),
    )
    manifest = await prepare(options(tmp_path, rows, without=(evaluation,)))
    assert questions(tmp_path) == ["Find \\(m+k\\), for all \\(x\\)"]
    assert manifest.without == {"aime": 1}
    assert manifest.rejected == {"the question is to be kept out": 1}
    [rejected] = lines(tmp_path / "out/rejected.jsonl")
    assert rejected["detail"].endswith("kept out: aime")
    with pytest.raises(ProRLError, match=r"without: .*absent: FileNotFoundError"):
        await prepare(options(tmp_path, rows, without=(tmp_path / "absent",)))
    (evaluation / "rows.jsonl").write_text("{}")
    with pytest.raises(ProRLError, match=r"without: .*aime: kind: Field required$"):
        await prepare(options(tmp_path, rows, without=(evaluation,)))


async def test_a_limit_counts_only_usable_problems(tmp_path: Path) -> None:
    rows = [published.deepscaler(str(n), "" if n % 2 else str(n)) for n in range(300)]
    manifest = await prepare(options(tmp_path, given(tmp_path, *rows), limit=100))
    assert (manifest.problems, manifest.rows_read) == (100, 199)
    assert questions(tmp_path) == [str(n) for n in range(0, 200, 2)]


async def test_a_version_of_livecodebench_is_a_subset_of_its_files(tmp_path: Path) -> None:
    directory = tmp_path / "files"
    directory.mkdir()
    for name in ("test", "test2", "test3"):
        row = published.livecodebench(question_id=name, question_content=name)
        (directory / f"{name}.jsonl").write_text(json.dumps(row))
    two = options(tmp_path, directory, dataset="livecodebench", split="release_v2")
    await prepare(two)
    assert questions(tmp_path) == ["test", "test2"]
    await prepare(options(tmp_path, directory, dataset="livecodebench", split="v3"))
    assert questions(tmp_path) == ["test3"]
    with pytest.raises(ProRLError, match=r"v6 needs files that are missing: test6\.jsonl"):
        await prepare(options(tmp_path, directory, dataset="livecodebench"))
    with pytest.raises(ProRLError, match="split: there is no 'test', only v1"):
        await prepare(options(tmp_path, directory, dataset="livecodebench", split="test"))


async def test_an_id_from_a_data_set_is_used_once(tmp_path: Path) -> None:
    rows = given(
        tmp_path, published.livecodebench(), published.livecodebench(question_content="Another.")
    )
    manifest = await prepare(options(tmp_path, rows, dataset="livecodebench"))
    assert manifest.rejected == {"its id occurred before": 1}
    assert questions(tmp_path) == ["Print the sum."]


async def test_no_file_is_written_if_no_row_can_be_used(tmp_path: Path) -> None:
    rows = given(tmp_path, published.amc23())
    with pytest.raises(ProRLError, match="no row can be used: 1 with: problem is missing"):
        await prepare(options(tmp_path, rows))
    assert list((tmp_path / "out").iterdir()) == []
    for missing in (tmp_path / "absent", tmp_path / "rows.csv"):
        with pytest.raises(ProRLError, match="from: "):
            await prepare(options(tmp_path, missing, output=tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def test_the_command_prepares_rows_and_names_a_missing_file(tmp_path: Path) -> None:
    rows = given(tmp_path, published.deepscaler(), published.deepscaler(answer=""))
    command = [sys.executable, "-m", "recipes.math_code.prepare", "--dataset", "deepscaler"]
    command += ["--output", str(tmp_path / "out"), "--workers", "1", "--from"]
    done = subprocess.run(
        [*command, str(rows)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "rejected: 1" in done.stdout
    [problem] = read_rows(tmp_path / "out/rows.jsonl")
    assert isinstance(problem, MathProblem)
    failed = subprocess.run(
        [*command, "absent"], capture_output=True, text=True, timeout=120, check=False
    )
    assert failed.returncode == 2
    assert failed.stderr.startswith("prorl: from: there is no absent")
