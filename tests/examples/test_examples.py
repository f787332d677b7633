"""Every example, by the commands that its first lines give, on an engine with scripted replies."""

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from prorl_service import local
from prorl_service.testing import StubEngine, byte_model, call
from prorl_service.testing.replies import Reply, token_ids
from prorl_service.tokens.chat import ChatFormat
from tests.sandbox.images.debian import debian_image

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
MOST_LINES = 60
TRIED: dict[str, tuple[Sequence[str], str]] = {
    "own_agent": (["50", "sixty", "60"], "0.333"),
    "own_reward": ([r"\boxed{51}"], "0.9989"),
    "two_agents": ([r"\boxed{41}", "17 times 3 is 51.", r"\boxed{51}"], "1"),
}
"""Replies and reward of the examples that are tried without a service."""


class Multiplying(StubEngine):
    """Answers what two numbers multiply to, wrongly in each group's second rollout; solves the task
    of counting words."""

    def __init__(self, model: Path) -> None:
        super().__init__(model, lambda _: (), max_model_len=1 << 20)
        self.chat = ChatFormat.load(str(model), None)

    def answer(self, prompt: list[int], session_id: str) -> tuple[list[int], bool]:
        return token_ids(self._reply(prompt, session_id), self.chat)

    def _reply(self, prompt: list[int], session_id: str) -> Reply:
        text = self.chat.decode(prompt, stopped=False)
        if "count.txt" in text and "<tool_response>" not in text:
            return call(
                "bash", command=(EXAMPLES / "harbor/word-count/solution/solve.sh").read_text()
            )
        factors = re.search(r"What is (\d+) (?:times|\*) (\d+)", text)
        product = 0 if factors is None else int(factors[1]) * int(factors[2])
        return rf"\boxed{{{product + session_id.endswith('.1')}}}"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("examples")
    byte_model.write(directory)
    options = ["--image-base", f"debian:bookworm-slim={debian_image()}"]
    with (
        Multiplying(directory).in_thread() as engine,
        local.service([engine.url], log=directory / "service.log", options=options) as service,
    ):
        yield service.url


def run(command: Sequence[str], directory: Path, **variables: str) -> str:
    """Returns what the command prints. It runs in `directory`, as in a checkout."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ended = subprocess.run(
        command,
        cwd=directory,
        env={
            **os.environ,
            "PATH": path,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins/trl'}",
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-5000:]
    return ended.stdout


def commands(example: str) -> list[list[str]]:
    """Returns the commands of the example's first lines, without what follows `#`."""
    docstring = ast.get_docstring(ast.parse((EXAMPLES / f"{example}.py").read_text()))
    assert docstring is not None
    found, lines = [], ""
    for line in docstring.splitlines():
        lines += f"{line}\n" if lines or line.startswith(("prorl", "python")) else ""
        with suppress(ValueError):  # a quotation goes on in the next line
            found += [words] if (words := shlex.split(lines, comments=True)) else []
            lines = ""
    return found


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "examples").symlink_to(EXAMPLES)
    return tmp_path


def test_examples_are_short_and_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    files = sorted(EXAMPLES.glob("*.[ps][yh]"))
    assert len(files) == 9
    for file in files:
        assert len(file.read_text().splitlines()) <= MOST_LINES, file
        assert f"({file.name})" in listed


@pytest.mark.parametrize("example", TRIED)
def test_an_agent_is_tried(example: str, checkout: Path) -> None:
    replies, reward = TRIED[example]
    (checkout / "replies.txt").write_text("\n---\n".join(replies))
    command = next(one for one in commands(example) if "try" in one)
    place = command.index("--engine")
    printed = run([*command[:place], "--replies", "replies.txt", *command[place + 2 :]], checkout)
    assert re.search(rf"reward \| {re.escape(reward)}", printed), printed


@pytest.mark.parametrize(
    ("example", "expected"),
    [
        ("hello", "done, reward 1.0"),
        ("dynamic_sampling", "step 1: complete"),
        pytest.param("harness", "main: ", marks=pytest.mark.harnesses),
    ],
)
def test_a_script_runs(example: str, expected: str, checkout: Path, url: str) -> None:
    [command] = [one for one in commands(example) if one[0] == "python"]
    assert expected in run(command, checkout, PRORL_URL=url)


def test_a_harbor_task_is_worked_on(checkout: Path, url: str) -> None:
    made, script = [one for one in commands("harbor_task") if one[:2] != ["prorl", "serve"]]
    run(made, checkout)
    printed = run(script, checkout, PRORL_URL=url)
    assert "rewards [1.0, 1.0, 1.0, 1.0]" in printed
