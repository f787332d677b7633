from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _temporary_files_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps temporary files apart from those of other services, which would look like leftovers."""
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
