"""Agents by name: those of packages and operators, and those that authors name by their file."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from prorl_service.agents.registry import ENTRY_POINT_GROUP, AgentRegistry, registry_with
from prorl_service.errors import InvalidRequest
from tests.installed import install

AGENT = """
from prorl_service.agents.math import MathAgent

class {0}(MathAgent):
    name = "{1}"
"""
PACKAGE = AGENT.format("Poet", "poet")
NAMES = [
    *("code", "dialogue", "harbor", "harness", "math", "nemo_gym", "openenv", "poet"),
    *("reasoning_gym", "rubric", "stem", "swe"),
]
FORM = "write it as 'package.module:Class'"


@pytest.fixture(autouse=True)
def _own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])


def write(file: Path, class_name: str, name: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(AGENT.format(class_name, name))
    return file


def test_an_installed_package_offers_its_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offers = f"[{ENTRY_POINT_GROUP}]\nany = poetry_agents:Poet\n"
    install(monkeypatch, tmp_path, module="poetry_agents", source=PACKAGE, offers=offers)
    registry = AgentRegistry()
    assert registry.names == NAMES
    assert registry["poet"].__name__ == "Poet"


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("no_such_module:Agent", FORM),
        ("json:NoSuch", "it has no subclass of AgentHandler"),
        ("json:dumps", ""),
        ("a b", FORM),
        ("guess_game", FORM),
        ("guess_game.py", "write it as 'guess_game.py:Class'"),
        ("/games/guess.py", "write it as '/games/guess.py:Class'"),
    ],
)
def test_the_error_names_a_path_that_leads_to_no_agent(path: str, hint: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(path)) as refused:
        AgentRegistry([path])
    assert refused.value.hint == hint


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


@pytest.mark.parametrize("of", ["agents_of_here:Poet", "agents_of_here.py:Poet"])
def test_agents_of_the_current_directory_are_found(
    of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"by_{'file' if '.py' in of else 'module'}_{of}"
    (tmp_path / f"{name.partition(':')[0].removesuffix('.py')}.py").write_text(PACKAGE)
    monkeypatch.chdir(tmp_path)
    assert "poet" in AgentRegistry([name]).names


# --- as their authors name them -----------------------------------------------------------------


def test_a_file_may_lie_anywhere(tmp_path: Path) -> None:
    file = write(tmp_path / "elsewhere" / "file_of_bards.py", "Bard", "bard")
    registry, name = registry_with(f"{file}:Bard")
    assert (name, registry[name].__module__) == ("bard", "file_of_bards")


def test_a_file_imports_its_neighbours(tmp_path: Path) -> None:
    write(tmp_path / "bard_base.py", "Base", "base")
    file = tmp_path / "bard_derived.py"
    file.write_text("from bard_base import Base\nclass Derived(Base):\n    name = 'derived'\n")
    assert registry_with(f"{file}:Derived")[1] == "derived"


def test_a_file_of_a_package_may_import_relatively(tmp_path: Path) -> None:
    package = tmp_path / "bards_package" / "inner"
    write(package / "base.py", "Base", "inner_base")
    for directory in (package, package.parent):
        (directory / "__init__.py").touch()
    file = package / "derived.py"
    file.write_text("from .base import Base\nclass Derived(Base):\n    name = 'inner_derived'\n")
    registry, name = registry_with(f"{file}:Derived")
    assert registry[name].__module__ == "bards_package.inner.derived"


@pytest.mark.processes
def test_functions_of_a_file_can_be_sent_to_scoring_processes(tmp_path: Path) -> None:
    file = write(tmp_path / "pickled_bards.py", "Bard", "pickled")
    program = (
        "import multiprocessing, sys\n"
        "from prorl_service.agents.registry import registry_with\n"
        "if __name__ == '__main__':\n"
        "    registry, name = registry_with(sys.argv[1])\n"
        "    pool = multiprocessing.get_context('spawn').Pool(1)\n"
        "    print(pool.apply(type, (registry[name],)))\n"
    )
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py"), f"{file}:Bard"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "ABCMeta" in done.stdout


@pytest.mark.parametrize(
    ("source", "complaint", "hint"),
    [
        (
            "nobody",
            "no agent 'nobody'",
            "there are code, dialogue, harbor, harness, math, nemo_gym, openenv,",
        ),
        ("bards.py", "names no class", "write it as 'bards.py:Class'"),
        ("nowhere.py:Bard", "there is no file", ""),
        ("json:dumps", "is not a subclass of AgentHandler", ""),
        ("no_such_module:Bard", "no module 'no_such_module'", ""),
    ],
)
def test_what_is_wrong_with_a_name_is_said(source: str, complaint: str, hint: str) -> None:
    with pytest.raises(InvalidRequest, match=complaint) as refused:
        registry_with(source)
    assert refused.value.hint.startswith(hint)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("json.py", "another module is called 'json'"), ("my-bards.py", "is no name of a module")],
)
def test_a_file_whose_name_cannot_be_imported_is_refused(
    name: str, complaint: str, tmp_path: Path
) -> None:
    file = write(tmp_path / name, "Bard", "bard")
    with pytest.raises(InvalidRequest, match=complaint) as refused:
        registry_with(f"{file}:Bard")
    assert refused.value.hint.startswith("rename the file")


def test_a_misspelt_class_of_a_file_is_answered_with_those_there_are(tmp_path: Path) -> None:
    file = write(tmp_path / "offering_bards.py", "Bard", "bard")
    with pytest.raises(InvalidRequest) as refused:
        registry_with(f"{file}:Brad")
    assert refused.value.hint == "it has MathAgent, Bard"
