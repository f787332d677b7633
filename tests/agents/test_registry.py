from pathlib import Path

import pytest

from prorl_service.agents.registry import ENTRY_POINT_GROUP, AgentRegistry
from prorl_service.errors import InvalidRequest

PACKAGE = """
from prorl_service.agents.math import MathAgent

class Poet(MathAgent):
    name = "poet"
"""


def test_an_installed_package_offers_its_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "poetry_agents.py").write_text(PACKAGE)
    metadata = tmp_path / "poetry_agents-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: poetry-agents\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\nany = poetry_agents:Poet\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry = AgentRegistry()
    assert registry.names == ["code", "math", "poet", "stem", "swe"]
    assert registry["poet"].__name__ == "Poet"


def test_an_operator_adds_one_by_import_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "local_agents.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    assert AgentRegistry(["local_agents:Poet"]).names == ["code", "math", "poet", "stem", "swe"]


@pytest.mark.parametrize("path", ["no_such_module:Agent", "json:NoSuch", "json:dumps", "a b"])
def test_a_path_that_leads_to_no_agent_is_named(path: str) -> None:
    with pytest.raises(InvalidRequest, match=path):
        AgentRegistry([path])
