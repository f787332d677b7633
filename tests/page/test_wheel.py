"""The wheel: it brings the page whole, with licences, and is not built without; and the presets."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from prorl_service.gateway.harnesses import preset
from prorl_service.page.files import VENDOR
from tests.programs import ran

pytestmark = [pytest.mark.slow, pytest.mark.processes]

ROOT = Path(__file__).parents[2]
PRESETS = "prorl_service/gateway/harnesses"
STATIC = "prorl_service/page/static"
NEEDED = (
    *("pyproject.toml", "README.md", "LICENSE", ".gitignore"),
    *("prorl_service", "plugins", "scripts", "examples/project"),
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the wheel is built from."""
    for name in NEEDED:
        source, target = ROOT / name, tmp_path / "checkout" / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    return tmp_path / "checkout"


def build(checkout: Path, directory: Path) -> subprocess.CompletedProcess[str]:
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(directory))
    return ran(sys.executable, "-m", "pip", "wheel", *options, str(checkout))


def test_the_wheel_has_the_page_and_its_licences(checkout: Path, tmp_path: Path) -> None:
    built = build(checkout, tmp_path)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("prorl_service-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if name.startswith(STATIC)}
        presets = {name for name in archive.namelist() if name.startswith(PRESETS)}
        licences = archive.read(f"{STATIC}/vendor/LICENSES.txt").decode()
        archive.extractall(tmp_path / "unpacked")
    own = {file.name for file in (ROOT / STATIC).iterdir() if file.is_file()}
    assert names == {f"{STATIC}/{name}" for name in (*VENDOR, *own)}
    assert {f"{PRESETS}/{name}.toml" for name in preset.names()} <= presets
    for name in ("htm", "preact", "uPlot", "ansi_up"):
        assert f"==== {name} (" in licences
    # It is complete where there is no checkout.
    code = "from prorl_service.page import files; files.check_complete(); print(files.__file__)"
    elsewhere = os.environ | {"PYTHONPATH": str(tmp_path / "unpacked")}
    shown = ran(sys.executable, "-c", code, env=elsewhere, cwd=tmp_path, check=True)
    assert shown.stdout.startswith(str(tmp_path / "unpacked"))


@pytest.mark.parametrize("name", VENDOR)
def test_no_wheel_is_built_without_a_file_of_the_page(
    checkout: Path, tmp_path: Path, name: str
) -> None:
    (checkout / STATIC / name).unlink()
    built = build(checkout, tmp_path)
    assert built.returncode == 1
    short = name.rpartition("/")[2]
    assert f"the page lacks {short}: run scripts/setup-page first" in built.stderr
    assert "Traceback" not in built.stderr
    assert not list(tmp_path.glob("*.whl"))
