"""Backups of services at work, restored elsewhere: nothing acknowledged before is lost."""

from pathlib import Path

import pytest

from prorl_service.cli.backup import backup
from prorl_service.inference.pushed import NumberedWeights, PushedWeights
from prorl_service.inference.sources import WeightFile
from prorl_service.rollouts.journal import Journal, tables
from prorl_service.rollouts.journal.owner import WEIGHTS
from tests.faults.releases import KILLS, Release, lost_in_restore
from tests.rollouts.journals import accepted

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("kill", KILLS)
def test_a_restored_backup_has_all_that_was_acknowledged_before(
    kill: str, tiny_model: Path, tmp_path: Path
) -> None:
    assert lost_in_restore(kill, tmp_path / "run", tiny_model) == []
    assert "Traceback" not in (tmp_path / "run/elsewhere/service.log").read_text()


async def test_a_backup_has_what_is_beside_the_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "j"
    weights = tmp_path / "j.weights/weights-0"
    async with Journal(path) as journal:
        await journal.accept([accepted("a")])
        newest = NumberedWeights(WeightFile(weights), 3)
        await journal.remember(WEIGHTS, PushedWeights(newest).to_json())
        backup(path, tmp_path / "without")
        assert capsys.readouterr().err == f"without the newest weights: {weights} is gone\n"
        for name in ("j.weights/weights-0", "j.weights/weights-1", "j.layers/0-0"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(name)
        backup(path, tmp_path / "copy")
    copied = sorted(one for one in (tmp_path / "copy").rglob("*") if one.is_file())
    assert [str(one.relative_to(tmp_path / "copy")) for one in copied] == [
        *("j", "j.layers/0-0", "j.weights/weights-0")
    ]
    async with Journal(tmp_path / "copy/j") as again:
        [unfinished] = await again.read(tables.unfinished)
        kept = PushedWeights.from_json(await again.read(tables.recall, WEIGHTS), copied[-1].parent)
    assert unfinished.request == accepted("a").request
    assert kept.files() >= {str(copied[-1])}


def test_a_backup_replaces_nothing_and_takes_journals_only(tmp_path: Path) -> None:
    now, copy = Release(), tmp_path / "copy"
    (tmp_path / "text").write_text("text")
    refused = now.python("-m", "prorl_service.cli", "backup", str(tmp_path / "text"), str(copy))
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "file is not a database" in refused.stderr
    assert not list(tmp_path.glob("copy*"))
    refused = now.python("-m", "prorl_service.cli", "backup", str(tmp_path / "j"), str(copy))
    assert "no such journal" in refused.stderr
    (tmp_path / "j").touch()
    copy.mkdir()
    refused = now.python("-m", "prorl_service.cli", "backup", str(tmp_path / "j"), str(copy))
    assert "copy exists" in refused.stderr
