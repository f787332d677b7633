"""What README.md and other pages try with `prorl try`, and test, run as they are printed."""

import shlex
import sys
from pathlib import Path

import pytest

from recipes.dialogue.user import customer
from scripts.documentation.markdown import Page
from scripts.documentation.pages import ROOT
from tests.cli.try_process import COMMAND, done
from tests.docs.printed import blocks, untimed, write

pytestmark = pytest.mark.processes
MAX_LINES = 10
"""Most lines of a test that the page shows as short."""


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


def test_the_dialogue_goes_as_its_page_shows(tmp_path: Path) -> None:
    write(
        tmp_path,
        order_json=blocks("dialogue.md", "json")[0],
        replies_txt=blocks("dialogue.md", "text")[0],
    )
    command = blocks("dialogue.md", "sh")[1].splitlines()[1]
    with customer().in_thread() as user:
        shown = tried(command.replace("http://127.0.0.1:8090", user.url), tmp_path)
    assert untimed(blocks("dialogue.md", "")[0]) in shown
    assert "goal_reached  1" in shown


@pytest.fixture
def poem(tmp_path: Path) -> Path:
    agent, tests = blocks("agents.md", "python")[4:]
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
    assert_tests_pass(poem)


def assert_tests_pass(directory: Path) -> None:
    here = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", "."]
    ended = done([*here, "--asyncio-mode=auto"], directory)
    assert "2 passed" in ended.stdout, ended.stdout + ended.stderr


@pytest.fixture
def guess(tmp_path: Path) -> Path:
    agent, _, short, long = blocks("agents.md", "python")[:4]
    write(
        tmp_path,
        my_agent_py=agent,
        test_short_py=short,
        test_long_py=long,
        task_json=blocks("agents.md", "json")[0],
        replies_txt=blocks("agents.md", "text")[0],
    )
    return tmp_path


def test_the_agent_without_tools_does_what_its_page_shows(guess: Path) -> None:
    command = blocks("agents.md", "sh")[0].splitlines()[0]
    assert tried(command, guess) == untimed(blocks("agents.md", "")[0])


def test_the_tests_of_the_agent_without_tools_are_short_and_pass(guess: Path) -> None:
    for example in blocks("agents.md", "python")[1:3]:
        assert len([line for line in example.splitlines() if line]) <= MAX_LINES
    assert_tests_pass(guess)


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
