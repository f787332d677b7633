"""Which modules a verifier's Python finds, with those of the agent in the current directory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from prorl_service.agents.harbor import guest_search

pytestmark = pytest.mark.processes

FOUND = "import json; print(json.__file__ is None or 'agent' in json.__file__)"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    directory = tmp_path / "agent"
    (directory / "inner").mkdir(parents=True)
    (directory / "json.py").write_text("loads = None\n")
    (directory / "helper.py").write_text("print('helper')\n")
    (directory / "main.py").write_text(f"import helper\n{FOUND}\n")
    (tmp_path / "startup").mkdir()
    source = Path(guest_search.__file__).read_bytes()
    (tmp_path / "startup" / "sitecustomize.py").write_bytes(source)
    return directory


def said(work: Path, *arguments: str, isolated: bool = True, paths: str = "") -> str:
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(filter(None, (str(work.parent / "startup"), paths))),
        guest_search.WORK: f"{work}/",
        **({guest_search.ISOLATED: "1"} if isolated else {}),
    }
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=work, env=environment, text=True, capture_output=True, check=False
    )
    return "error" if done.returncode else " ".join(done.stdout.split())


def test_modules_of_the_current_directory_are_not_found(work: Path) -> None:
    assert said(work, "-c", FOUND) == "False"
    assert said(work, "-m", "json.tool", "--help").startswith("usage")
    assert said(work, "-c", "import helper") == "error"


def test_a_path_that_is_added_later_comes_after_the_image(work: Path) -> None:
    added = f"import sys; sys.path.insert(0, {str(work)!r}); import helper; {FOUND}"
    assert said(work, "-c", added) == "helper False"
    assert said(work, "-c", added, isolated=False) == "helper True"


def test_they_are_found_last_if_the_task_needs_them(work: Path) -> None:
    assert said(work, "-c", f"import helper; {FOUND}", isolated=False) == "helper False"


@pytest.mark.parametrize("isolated", [True, False])
def test_a_path_to_the_work_is_searched_last(work: Path, isolated: bool) -> None:
    command = f"import helper; {FOUND}"
    assert said(work, "-c", command, isolated=isolated, paths=str(work)) == "helper False"


def test_a_program_of_the_agents_finds_its_own(work: Path) -> None:
    assert said(work, "main.py") == "helper True"
    assert said(work, "-m", "helper") == "helper"
