"""The table of neighbours agrees with what else names releases, and with what is installed."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from prorl_service import neighbours as module
from prorl_service.neighbours import Neighbour, UntestedRelease, neighbours
from tests.programs import ran

ROOT = Path(__file__).parents[2]
PACKAGES = {canonicalize_name(one.package): one for one in neighbours().values() if one.package}
PIN = re.compile(r"([A-Za-z][\w-]*)(?:\[[\w,]+\])?==([\d.]+)")


def test_the_extras_have_the_tested_ranges() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        Requirement(one) for some in project["optional-dependencies"].values() for one in some
    ]
    named = {canonicalize_name(one.name): one.specifier for one in wanted}
    found = {name: named[name] for name in PACKAGES if name in named}
    assert found == {name: SpecifierSet(PACKAGES[name].tested) for name in found}
    assert {"trl", "verl", "transformers", "harbor", "mcp", "ray", "transferqueue"} <= found.keys()


def test_what_our_scripts_install_is_in_the_tested_range() -> None:
    pins = [
        (file.name, *pin)
        for file in (ROOT / "scripts").iterdir()
        if file.is_file()
        for pin in PIN.findall(file.read_text())
    ]
    known = [(file, PACKAGES.get(canonicalize_name(name)), release) for file, name, release in pins]
    checked = [(one, release) for file, one, release in known if one and "verl" not in file]
    assert len({one.name for one, _ in checked}) > 5
    assert [(one.name, release) for one, release in checked if not one.supports(release)] == []


def test_the_newest_is_in_its_range() -> None:
    for one in neighbours().values():
        assert one.supports(one.newest), one.name
        for part in one.parts:
            assert one.supports(one.newest, part), one.name


@pytest.mark.parametrize("venv", [".venv", ".venv-verl", ".venv-harbor"])
@pytest.mark.processes
@pytest.mark.slow
def test_what_is_installed_has_all_that_we_use(venv: str) -> None:
    python = ROOT / venv / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{venv} is not set up")
    command = [str(python), "-m", "scripts.neighbour_check", "--installed"]
    done = ran(*command, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": 0 of ") > 1


@pytest.mark.parametrize(
    ("release", "part", "is_supported"),
    [
        ("1.6", "", True),
        ("1.15.0", "", False),
        ("1.17", "", False),
        ("1.17.0.dev0", "", False),
        ("1.16.1rc1", "", True),
        ("a-checkout", "", True),
        ("1.6", "late", False),
        ("1.12", "late", True),
    ],
)
def test_a_release_outside_the_range_is_refused_with_the_range(
    monkeypatch: pytest.MonkeyPatch, release: str, part: str, is_supported: bool
) -> None:
    one = Neighbour(
        name="lib",
        title="Lib",
        package="lib",
        tested=">=1.6,!=1.15.0,<1.17",
        newest="1.16.0",
        by="this test",
        parts={"late": ">=1.11"},
    )
    monkeypatch.setattr(module, "version", lambda package: release)
    assert one.supports(release, part) is is_supported
    if is_supported:
        one.check("our plug-in", part)
        return
    with pytest.raises(UntestedRelease) as refused:
        one.check("our plug-in", part)
    assert f"but lib {release} is installed" in refused.value.message
    assert "<1.17" in refused.value.message
    assert refused.value.hint.startswith("pip install 'lib")
