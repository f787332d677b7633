"""Directories that several processes may make at once."""

from pathlib import Path

import pytest

from prorl_service.utils.files import publish


def made(path: Path, content: str) -> Path:
    path.mkdir()
    (path / "file").write_text(content)
    return path


def test_the_first_directory_stays(tmp_path: Path) -> None:
    target = tmp_path / "target"
    for content in ("first", "second"):
        publish(made(tmp_path / content, content), target)
    assert (target / "file").read_text() == "first"


def test_a_directory_that_cannot_be_published_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("a file")
    with pytest.raises(OSError, match="Not a directory"):
        publish(made(tmp_path / "made", "some"), tmp_path / "target")
