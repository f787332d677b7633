"""Which installed tree a preset runs."""

from pathlib import Path

import pytest

from prorl_service.errors import InvalidRequest, TaskError
from prorl_service.gateway.harnesses import preset, store, trees
from prorl_service.gateway.harnesses.store import Record
from prorl_service.sandbox.cache import programs_directory


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PRORL_HARNESSES", str(tmp_path))
    return tmp_path


def put(name: str, version: str, *, python: str | None = None) -> Path:
    tree = Path(programs_directory(), f"{name}@{version}")
    tree.mkdir()
    record = Record(
        name=name, version=version, python=python, packages={}, digest="", files=0, size_mb=1
    )
    store.write(tree, record)
    return tree


def test_a_task_may_name_another_version(directory: Path) -> None:
    put("pi", preset.version_of("pi"))
    other = put("pi", "9.9.9")
    assert store.find("pi_messages", "9.9.9").path == other
    assert {one.version for one in store.installed()} == {preset.version_of("pi"), "9.9.9"}


@pytest.mark.parametrize(
    ("name", "version", "command"),
    [("pi", None, "pi"), ("pi_messages", None, "pi"), ("pi", "9.9.9", "pi@9.9.9")],
)
def test_a_missing_tree_is_an_error_that_says_what_to_run(
    name: str, version: str | None, command: str
) -> None:
    with pytest.raises(TaskError, match=f"the harness {name} .* is not installed") as caught:
        store.find(name, version)
    assert caught.value.hint == f"run `prorl harnesses install {command}`"


@pytest.mark.parametrize("version", ["../pi@1", "1/../..", "latest"])
def test_a_version_is_no_path(version: str) -> None:
    with pytest.raises(InvalidRequest, match="is no version"):
        store.find("pi", version)


def test_a_tree_for_another_python_is_refused(directory: Path) -> None:
    put("python", "1", python="3.1")
    with pytest.raises(TaskError, match=r"python@1 is for Python 3\.1, and the service runs on"):
        store.find("python")
    assert store.find("python", any_python=True).version == "1"


def test_unfinished_and_foreign_directories_are_no_trees(directory: Path) -> None:
    for name in (".making-x", "pi@1.0.0", "notes"):
        (directory / name).mkdir()
    (directory / "file@1").touch()
    assert store.installed() == []


def test_a_broken_record_is_an_error_that_says_what_to_remove(directory: Path) -> None:
    tree = put("pi", preset.version_of("pi"))
    (tree / trees.RECORD).write_text("{")
    with pytest.raises(TaskError, match="cannot be read") as caught:
        store.find("pi")
    assert f"prorl harnesses remove {tree.name}" in caught.value.hint
