"""Agents that their authors name by file, by module or by name."""

import subprocess
import sys
from pathlib import Path

import pytest

from prorl_service.agents.registry import registry_with
from prorl_service.errors import InvalidRequest

AGENT = """
from prorl_service.agents.math import MathAgent

class {0}(MathAgent):
    name = "{1}"
"""


@pytest.fixture(autouse=True)
def _own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])


def write(file: Path, class_name: str, name: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(AGENT.format(class_name, name))
    return file


def test_a_built_in_agent_is_named() -> None:
    registry, name = registry_with("math")
    assert registry[name].__name__ == "MathAgent"


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
            "there are code, harbor, harness, math, nemo_gym, openenv,",
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
