"""Presets of harnesses against npm packages, which these tests write themselves."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from scripts.neighbour_check import packages
from scripts.neighbour_check.presets import OfNpm, presets

PRESET = """
about = "A program."
command = ["${tree}/node_modules/@org/agent/bin/run", "--quiet", "--", "${prompt}"]
[install]
version = "1.0"
npm = { "@org/agent" = "{version}" }
[environment]
AGENT_URL = "${url}"
"""


@pytest.fixture
def preset(tmp_path: Path) -> OfNpm:
    file = tmp_path / "prorl_service/gateway/harnesses/agent.toml"
    file.parent.mkdir(parents=True)
    file.write_text(PRESET)
    [found] = presets(tmp_path)
    assert isinstance(found, OfNpm)
    return found


def serve(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, str], days: float = 1, **about: object
) -> None:
    released = (datetime.now(UTC) - timedelta(days=days)).isoformat()
    described = {"version": "2.0", "time": {"2.0": released}, **about}

    def unpack(package: str, directory: Path) -> Path:
        for name, text in files.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(text)
        return directory

    monkeypatch.setattr(packages, "about", lambda package: described)
    monkeypatch.setattr(packages, "unpack", unpack)


def test_a_program_that_is_as_before_is_fine(
    preset: OfNpm, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(monkeypatch, {"bin/run": "reads AGENT_URL, knows --quiet"})
    assert preset.compared() == ("2.0", 3, [])


@pytest.mark.parametrize(
    ("files", "about", "said"),
    [
        ({"bin/run": "AGENT_URL, --silent"}, {}, "@org/agent knows no --quiet"),
        ({"bin/run": "AGENT_BASE, --quiet"}, {}, "@org/agent knows no AGENT_URL"),
        ({"dist/run": "AGENT_URL, --quiet"}, {}, "@org/agent/bin/run is not there"),
        ({"bin/run": "AGENT_URL, quiet"}, {"days": 200}, "no release for 200 days: has it moved?"),
        ({"bin/run": "AGENT_URL, quiet"}, {"deprecated": "use @new/agent"}, "use @new/agent"),
    ],
)
def test_what_moved_is_named(
    preset: OfNpm,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, str],
    about: dict[str, float],
    said: str,
) -> None:
    serve(monkeypatch, files, **about)
    _, _, [problem] = preset.compared()
    assert said in problem
