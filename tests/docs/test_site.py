"""The site builds offline without a warning, and loads nothing from elsewhere."""

import re
import subprocess
from pathlib import Path

import pytest

from scripts.documentation.pages import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SITE = ROOT / "outputs" / "docs" / "site"
LOADED = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=\"(\w+:)?//", re.I)


@pytest.fixture(scope="module")
def site() -> Path:
    built = subprocess.run(
        [ROOT / "scripts" / "docs"], capture_output=True, text=True, timeout=300, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return SITE


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        found = LOADED.search(page.read_text(encoding="utf-8"))
        assert found is None or "canonical" in found[0], (page, found)
    for style in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//", style.read_text(encoding="utf-8")), style


def test_the_api_is_rendered_out_of_the_docstrings(site: Path) -> None:
    page = (site / "reference" / "python" / "index.html").read_text(encoding="utf-8")
    assert "Starts all rollouts of <code>groups</code>" in page
    assert ":::" not in page


def test_programs_get_all_pages_as_text(site: Path) -> None:
    listed = (site / "llms.txt").read_text(encoding="utf-8")
    whole = (site / "llms-full.txt").read_text(encoding="utf-8")
    paths = re.findall(r"^- \[[^\]]+\]\(([^)]+)\)", listed, re.MULTILINE)
    assert "quickstart.md" in paths
    for path in paths:
        assert f"<!-- {path} -->" in whole
