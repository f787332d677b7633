"""`make release` refuses what must not be released, before it builds anything."""

import subprocess
from pathlib import Path

import pytest

from prorl_service import __version__
from scripts.documentation.pages import ROOT
from tests.programs import ran

pytestmark = pytest.mark.processes


def git(clone: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(clone), *arguments], check=True, capture_output=True)


def refusal(clone: Path) -> str:
    done = ran(clone / "scripts/release")
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr


def test_changes_and_tagged_versions_are_refused(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git(ROOT, "clone", "--quiet", "--shared", "--no-tags", str(ROOT), str(clone))
    (clone / "new").touch()
    assert "the working tree has changes" in refusal(clone)
    (clone / "new").unlink()
    git(clone, "tag", f"v{__version__}")
    assert f"v{__version__} is tagged already" in refusal(clone)
