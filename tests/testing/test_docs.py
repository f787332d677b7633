"""The agent, the trial and the tests of docs/agents.md, run as they are printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.try_process import COMMAND, done, environment

PAGE = (Path(__file__).parents[2] / "docs" / "agents.md").read_text()
pytestmark = pytest.mark.processes

BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)
MAX_LINES = 10
TIMES = re.compile(r"\d\.\d\d s(, waiting \d\.\d\d s)?")


def blocks(language: str) -> list[str]:
    return [text for name, text in BLOCKS if name == language]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    agent, *tests = blocks("python")[:3]
    (tmp_path / "my_agent.py").write_text(agent)
    for number, test in enumerate(tests):
        (tmp_path / f"test_{number}.py").write_text(test)
    (tmp_path / "task.json").write_text(blocks("json")[0])
    (tmp_path / "replies.txt").write_text(blocks("text")[0])
    return tmp_path


def test_the_trial_prints_what_the_page_shows(directory: Path) -> None:
    command = blocks("sh")[0].splitlines()[0].partition("#")[0].split()
    assert command[:2] == ["prorl", "try"]
    tried = done([*COMMAND, *command[2:], "--sandbox", "bubblewrap"], directory)
    assert tried.returncode == 0, tried.stderr
    shown = blocks("")[0]
    assert TIMES.sub("T", tried.stdout) == TIMES.sub("T", shown)


def test_the_examples_are_short_and_pass(directory: Path) -> None:
    for example in blocks("python")[1:3]:
        assert len([line for line in example.splitlines() if line]) <= MAX_LINES
    pytest_here = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    tested = subprocess.run(
        [*pytest_here, "--asyncio-mode=auto", "--rootdir", "."],
        cwd=directory,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "2 passed" in tested.stdout, tested.stdout + tested.stderr
