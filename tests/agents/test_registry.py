import sys
from pathlib import Path

import pytest

from prorl_service.agents.registry import ENTRY_POINT_GROUP, AgentRegistry
from prorl_service.errors import InvalidRequest
from tests.installed import install

PACKAGE = """
from prorl_service.agents.math import MathAgent

class Poet(MathAgent):
    name = "poet"
"""


def test_an_installed_package_offers_its_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offers = f"[{ENTRY_POINT_GROUP}]\nany = poetry_agents:Poet\n"
    install(monkeypatch, tmp_path, module="poetry_agents", source=PACKAGE, offers=offers)
    registry = AgentRegistry()
    assert registry.names == [
        "code",
        "harbor",
        "harness",
        "math",
        "nemo_gym",
        "openenv",
        "poet",
        "reasoning_gym",
        "stem",
        "swe",
    ]
    assert registry["poet"].__name__ == "Poet"


@pytest.mark.slow
def test_an_operator_adds_an_agent_by_import_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "local_agents.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    assert AgentRegistry(["local_agents:Poet"]).names == [
        "code",
        "harbor",
        "harness",
        "math",
        "nemo_gym",
        "openenv",
        "poet",
        "reasoning_gym",
        "stem",
        "swe",
    ]


@pytest.mark.parametrize("path", ["no_such_module:Agent", "json:NoSuch", "json:dumps", "a b"])
def test_the_error_names_a_path_that_leads_to_no_agent(path: str) -> None:
    with pytest.raises(InvalidRequest, match=path):
        AgentRegistry([path])


BAD_MODULES = {
    "syntax": ("class Poet(\n", r"bad_syntax.py, line 1: SyntaxError: '\(' was never closed"),
    "raising": ("1 / 0\n", "bad_raising.py, line 1: ZeroDivisionError: division by zero"),
    "needing": ("import no_such_library\n", "it imports 'no_such_library', which is not installed"),
    "misspelt": (PACKAGE.replace("Poet", "Bard"), "bad_misspelt has no Poet"),
    "nameless": (
        "from prorl_service.agents.base import AgentHandler\nclass Poet(AgentHandler): ...\n",
        "has no name",
    ),
    "abstract": (
        "from prorl_service.agents.base import AgentHandler\n"
        "class Poet(AgentHandler):\n    name = 'poet'\n",
        "lacks eval, init, prompt, run",
    ),
    "taken": (
        PACKAGE.replace('"poet"', '"math"'),
        "is named 'math', but prorl_service.agents.math:MathAgent already is",
    ),
}


@pytest.mark.parametrize("kind", BAD_MODULES)
def test_a_broken_agent_is_reported_in_one_line(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, complaint = BAD_MODULES[kind]
    (tmp_path / f"bad_{kind}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidRequest, match=complaint) as refused:
        AgentRegistry([f"bad_{kind}:Poet"])
    assert "\n" not in refused.value.message


def test_a_misspelt_class_is_refused_with_the_list_of_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "offering_agents.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidRequest) as refused:
        AgentRegistry(["offering_agents:Port"])
    assert refused.value.hint == "it has MathAgent, Poet"


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("guess_game.py", "write it as 'guess_game.py:Class'"),
        ("/games/guess.py", "write it as '/games/guess.py:Class'"),
        ("guess_game", "write it as 'package.module:Class'"),
        ("no_such_module:Agent", "write it as 'package.module:Class'"),
    ],
)
def test_a_bad_path_is_refused_with_the_form_to_use(path: str, hint: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        AgentRegistry([path])
    assert refused.value.hint == hint


@pytest.mark.parametrize("is_absolute", [True, False])
def test_an_agent_in_a_file_is_found_by_the_path_of_the_file(
    is_absolute: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"agents_by_path_{is_absolute}".lower()
    (tmp_path / f"{name}.py").write_text(PACKAGE)
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    directory = f"{tmp_path}/" if is_absolute else ""
    assert "poet" in AgentRegistry([f"{directory}{name}.py:Poet"]).names
    with pytest.raises(InvalidRequest, match=r"there is no file .*nowhere\.py"):
        AgentRegistry([f"{directory}nowhere.py:Poet"])


def test_modules_in_the_current_directory_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agents_of_here.py").write_text(PACKAGE)
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    assert "poet" in AgentRegistry(["agents_of_here:Poet"]).names
