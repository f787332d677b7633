"""Backups of services at work, restored elsewhere: nothing acknowledged before is lost."""

from pathlib import Path

import pytest

from tests.faults.releases import KILLS, Release, lost_in_restore

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("kill", KILLS)
def test_a_restored_backup_has_all_that_was_acknowledged_before(
    kill: str, tiny_model: Path, tmp_path: Path
) -> None:
    assert lost_in_restore(kill, tmp_path / "run", tiny_model) == []
    assert "Traceback" not in (tmp_path / "run/elsewhere/service.log").read_text()


def test_a_backup_replaces_nothing_and_takes_journals_only(tmp_path: Path) -> None:
    now, copy = Release(), tmp_path / "copy"
    (tmp_path / "text").write_text("text")
    refused = now.python("-m", "prorl_service.cli", "backup", str(tmp_path / "text"), str(copy))
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "file is not a database" in refused.stderr
    assert not copy.exists()
    copy.mkdir()
    refused = now.python("-m", "prorl_service.cli", "backup", str(tmp_path / "j"), str(copy))
    assert "copy exists" in refused.stderr
