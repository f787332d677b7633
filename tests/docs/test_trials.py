"""What README.md and other pages try with `prorl try`, and test, run as they are printed."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.documentation.markdown import Page
from scripts.documentation.pages import ROOT
from tests.cli.try_process import COMMAND, done, environment
from tests.docs.printed import blocks, untimed, write

pytestmark = pytest.mark.processes


def tried(block: str, directory: Path, *options: str) -> str:
    words = shlex.split(block, comments=True)
    assert words[:2] == ["prorl", "try"]
    ended = done([*COMMAND, *words[2:], "--sandbox", "bubblewrap", *options], directory)
    assert ended.returncode == 0, ended.stderr
    return untimed(ended.stdout)


def test_the_task_is_graded_as_its_page_shows(tmp_path: Path) -> None:
    write(
        tmp_path,
        task_json=blocks("tasks.md", "json")[0],
        right_jsonl=blocks("tasks.md", "text")[0],
    )
    assert untimed(blocks("tasks.md", "")[0]) in tried(blocks("tasks.md", "sh")[0], tmp_path)


@pytest.fixture
def poem(tmp_path: Path) -> Path:
    agent, tests = blocks("agents.md", "python")[3:]
    write(
        tmp_path,
        poem_agent_py=agent,
        test_poem_py=tests,
        poem_json=blocks("agents.md", "json")[1],
        poem_jsonl=blocks("agents.md", "text")[1],
    )
    return tmp_path


def test_the_agent_with_tools_does_what_its_page_shows(poem: Path) -> None:
    output = tried(blocks("agents.md", "sh")[1], poem)
    assert untimed(blocks("agents.md", "")[1]) in output


def test_the_agent_that_is_broken_on_the_page_says_where(poem: Path) -> None:
    agent = poem / "poem_agent.py"
    agent.write_text(agent.read_text().replace("self.data.words)", "self.data.word)"))
    command = shlex.split(blocks("agents.md", "sh")[1])[2:]
    ended = done([*COMMAND, *command, "--sandbox", "bubblewrap"], poem)
    assert ended.returncode == 1
    assert untimed(blocks("agents.md", "")[2]) in untimed(ended.stdout)


def test_the_tests_of_the_agent_with_tools_pass(poem: Path) -> None:
    here = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", "."]
    ended = subprocess.run(
        [*here, "--asyncio-mode=auto", "test_poem.py"],
        cwd=poem,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "2 passed" in ended.stdout, ended.stdout + ended.stderr


def test_the_program_reads_the_trajectory_of_the_quickstart(tmp_path: Path) -> None:
    write(
        tmp_path,
        task_json=blocks("quickstart.md", "json")[0],
        replies_jsonl=blocks("quickstart.md", "text")[0],
        read_py=blocks("looking.md", "python")[1],
    )
    tried(blocks("quickstart.md", "sh")[1], tmp_path, "--json", "rollouts.jsonl")
    ended = done([sys.executable, "read.py"], tmp_path)
    assert ended.stdout == blocks("looking.md", "")[0], ended.stderr


def test_the_agent_of_the_readme_is_the_one_that_docs_agents_md_tries() -> None:
    printed = [one.text for one in Page.read(ROOT / "README.md").blocks if "Guess" in one.text]
    assert printed == [blocks("agents.md", "python")[0]]
