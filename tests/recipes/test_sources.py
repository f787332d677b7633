"""Rows read from files in all forms by the real `datasets`; the hub is not tested."""

import json
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict

from prorl_service.errors import ProRLError
from recipes.common.data.sources import digest, from_hub, from_path
from tests.recipes.swebench.data import published

ROWS = [published.swe_gym(instance_id=f"getmoto__moto-{n}") for n in range(3)]


def parquet(path: Path) -> Path:
    Dataset.from_list(ROWS).to_parquet(str(path))
    return path


def shards(path: Path) -> Path:
    path.mkdir()
    Dataset.from_list(ROWS[:2]).to_parquet(str(path / "train-00000-of-00002.parquet"))
    Dataset.from_list(ROWS[2:]).to_parquet(str(path / "train-00001-of-00002.parquet"))
    Dataset.from_list(ROWS).to_parquet(str(path / "validation-00000-of-00001.parquet"))
    return path


def lines(path: Path) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    return path


def shards_of_lines(path: Path) -> Path:
    path.mkdir()
    for number, rows in enumerate([ROWS[:2], ROWS[2:]]):
        text = "".join(f"{json.dumps(row)}\n\n" for row in rows)
        (path / f"train-{number}.jsonl").write_text(text)
    (path / "validation.jsonl").write_text(json.dumps(ROWS[0]))
    return path


def array(path: Path) -> Path:
    path.write_text(json.dumps(ROWS))
    return path


def saved(path: Path) -> Path:
    Dataset.from_list(ROWS).save_to_disk(str(path))
    return path


def saved_splits(path: Path) -> Path:
    rows = Dataset.from_list(ROWS)
    DatasetDict(train=rows, validation=rows.select([0])).save_to_disk(str(path))
    return path


FORMS = {
    "rows.parquet": parquet,
    "shards": shards,
    "rows.jsonl": lines,
    "shards_of_lines": shards_of_lines,
    "rows.json": array,
    "saved": saved,
    "splits": saved_splits,
}


@pytest.mark.parametrize("name", FORMS)
def test_each_form_has_the_same_rows(name: str, tmp_path: Path) -> None:
    path = FORMS[name](tmp_path / name)
    source = from_path(path, "train")
    assert [dict(row) for row in source.rows] == ROWS
    assert source.revision == f"sha256:{digest(path)}"
    assert source.total in (None, 3)


def test_a_digest_covers_names_and_content(tmp_path: Path) -> None:
    before = digest(shards(tmp_path / "a"))
    assert before == digest(tmp_path / "a")
    (tmp_path / "a" / "more.txt").write_text("x")
    assert digest(tmp_path / "a") != before


def test_an_unreadable_source_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ProRLError, match=r"from: there is no .*absent"):
        from_path(tmp_path / "absent", "train")
    other = tmp_path / "rows.csv"
    other.write_text("a,b\n")
    with pytest.raises(ProRLError, match="must be a saved data set"):
        from_path(other, "train")
    with pytest.raises(ProRLError, match="no split 'test', only train, validation"):
        from_path(saved_splits(tmp_path / "splits"), "test")


def test_the_error_names_a_line_that_is_no_json(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": "one\u2028two"}\n{"a": ')
    rows = iter(from_path(path, "train").rows)
    assert next(rows) == {"a": "one\u2028two"}
    with pytest.raises(ProRLError, match=r"rows\.jsonl, line 2, cannot be read"):
        next(rows)


@pytest.mark.parametrize("files", [(), ("test.jsonl",)])
def test_the_error_without_a_hub_says_what_to_do(
    files: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ProRLError, match="cannot be read from the hub") as error:
        from_hub("SWE-Gym/SWE-Gym", "train", files=files)
    assert "--from" in error.value.hint
