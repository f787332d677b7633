"""`prorl try` as a process, in a pipe or on a terminal."""

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

COMMAND = [sys.executable, "-m", "prorl_service.cli", "try"]
TIMEOUT_S = 120

AGENTS = '''
import os
from dataclasses import replace
from pathlib import Path

from tests.testing.guess_agent import Guess as _Guess


class Guess(_Guess):
    name = "guess_here"


class Picky(Guess):
    """Fails where it is the second of its group."""

    name = "picky"

    async def run(self, rollout):
        if rollout.rollout_id.endswith(".1"):
            await rollout.sample(rollout.prompt_ids)
            return helper(rollout)
        return await super().run(rollout)


def helper(rollout):
    raise ValueError("of the author's own: \\x1b[2J")


class Warmer(Guess):
    """Tells what its first turns earned."""

    name = "warmer"

    async def eval(self, rollout):
        return replace(await super().eval(rollout), turn_rewards={0: -0.25, 1: 0.75})


class Unready(Guess):
    name = "unready"

    def prompt(self):
        return self.task.data["nothing"]


class Busy(Guess):
    """Blocks the event loop."""

    name = "busy"

    async def run(self, rollout):
        await rollout.sample(rollout.prompt_ids)
        while True:
            pass
'''

MATH: dict[str, Any] = {
    "messages": [{"role": "user", "content": "What is 17 * 3?"}],
    "data": {"answer": "51"},
}
STYLE = re.compile(r"\x1b\[[0-9;]*m")


def bash(command: str) -> str:
    """A reply that runs it."""
    call = {"name": "bash", "arguments": {"command": command}}
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


def arguments(
    directory: Path, agent: str, task: object, replies: Sequence[str], *options: str
) -> list[str]:
    """Writes what the command needs into `directory`."""
    (directory / "my_agents.py").write_text(AGENTS)
    (directory / "task.json").write_text(json.dumps(task))
    (directory / "replies.txt").write_text("\n---\n".join(replies))
    given = ["--task", "task.json", "--replies", "replies.txt", "--sandbox", "process"]
    return [*COMMAND, agent, *given, *options]


def environment(**variables: str) -> dict[str, str]:
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "TERM": "xterm-256color", **variables}


def done(
    command: Sequence[str], directory: Path, stdin: str = "", **variables: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        cwd=directory,
        env=environment(**variables),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@contextmanager
def running(command: Sequence[str], directory: Path) -> "Iterator[subprocess.Popen[str]]":
    """Its stdout and stderr are pipes."""
    with subprocess.Popen(
        command,
        cwd=directory,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def until(process: "subprocess.Popen[str]", text: str) -> list[str]:
    """What it prints up to a line that holds `text`."""
    lines = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError("".join(lines))


def on_terminal(command: Sequence[str], directory: Path, **variables: str) -> str:
    """What it writes to a terminal of 80 columns."""
    reading, writing = pty.openpty()
    with subprocess.Popen(
        command,
        cwd=directory,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=writing,
        stderr=subprocess.PIPE,
    ) as process:
        os.close(writing)
        written = b""
        try:
            while piece := os.read(reading, 65536):
                written += piece
        except OSError:  # the terminal is gone: the process has ended
            pass
        os.close(reading)
        process.wait(TIMEOUT_S)
    return written.decode().replace("\r\n", "\n")
