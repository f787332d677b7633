from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _temporary_files_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other services of this machine have theirs where a test would take them for leftovers."""
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
