"""A newcomer's first mistakes, made for real, and whether the answer is one line that helps.

Each answer must be short, name what is wrong and what to do, and hold no traceback.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.errors import ProRLError
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.schemas import Group, Message, Task

TIMEOUT_S = 240
MAX_LINES = 2

AGENT = """\
import time
from prorl_service.agents.base import Verdict
from prorl_service.agents.math import MathAgent

class {name}(MathAgent):
    {attribute}

    async def run(self, context):
        {run}

    async def eval(self, context):
        return Verdict(0.0)
"""
MODULES = {
    "guess_game.py": AGENT.format(name="Guess", attribute='name = "guess"', run="return None"),
    "sleepy.py": AGENT.format(
        name="Sleepy", attribute='name = "sleepy"', run='time.sleep(3); return "finished"'
    ),
    "unfinished.py": "class Guess(\n",
    "taken.py": AGENT.format(name="Guess", attribute='name = "math"', run="return None"),
    "nameless.py": "from prorl_service.agents.base import AgentHandler\n"
    "class Guess(AgentHandler): pass\n",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Setting of the mistakes: a directory of agents, an engine and a service."""

    directory: Path
    engine: str
    service: str
    log: Path

    def start(self, *arguments: str) -> str:
        """Returns what a `prorl serve` that cannot start says, without its log lines."""
        port = ["--port", str(local.free_port())] if "--port" not in arguments else []
        command = [sys.executable, "-m", "prorl_service.cli", "serve", "--journal", "none"]
        done = subprocess.run(
            [*command, *port, *arguments],
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        lines = done.stderr.splitlines()
        return "\n".join(one for one in lines if " INFO " not in one and " WARNING " not in one)

    def agent(self, path: str) -> str:
        return self.start("--agent", path)

    def post(self) -> str:
        with RolloutClient(self.service) as client:
            headers = {**client._client._http.headers}
        answer = httpx.post(
            f"{self.service}/v1/rollouts", content=b'{"groups": []}', headers=headers
        )
        error = answer.json()["error"]
        return f"{error['message']}\n{error['hint']}"

    def rollout(self, agent: str) -> str:
        """Returns the rollout's error, or what the service logged of a blocked loop."""
        task = Task(task_id="t", agent=agent, messages=[Message(role="user", content="Guess.")])
        task.data = {"answer": "1"}
        with RolloutClient(self.service) as client:
            client.submit([Group(group_id=agent, task=task)])
            (ended,) = client.wait([f"{agent}.0"], TIMEOUT_S)
        if ended.error is not None:
            return f"{ended.error.message}\n{ended.error.hint}"
        lines = self.log.read_text().splitlines()
        return next((line for line in lines if "blocked" in line), "")


def _no_engine(place: Place) -> str:
    dead = f"http://127.0.0.1:{local.free_port()}"
    with (
        local.service([dead], log=place.directory / "no-engine.log") as service,
        RolloutClient(service.url, retry_s=0) as client,
    ):
        task = Task(task_id="t", agent="math", messages=[Message(role="user", content="1?")])
        task.data = {"answer": "1"}
        try:
            client.submit([Group(group_id="g", task=task)])
        except ProRLError as error:
            return f"{error.message.partition(': ')[2]}".replace("\n  ", "\n")
        return ""


def _client(_: Place) -> str:
    try:
        RolloutClient("localhost:8080")
    except ProRLError as error:
        return f"{error.message}\n{error.hint}"
    return ""


def _status(place: Place) -> str:
    command = [sys.executable, "-m", "prorl_service.cli", "status", "--url", place.service]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    return done.stdout.partition("\n")[0]


MISTAKES: dict[str, tuple[Callable[[Place], str], str]] = {
    "a used port": (
        lambda place: place.start("--port", place.engine.rpartition(":")[2]),
        r"Address already in use\n +choose another --port",
    ),
    "--backend localhost:8000": (
        lambda place: place.start("--backend", "localhost:8000"),
        r"url: is not an engine's URL; write it as http://",
    ),
    "prorl status": (_status, r"\w"),
    "an agent's class misspelt": (
        lambda place: place.agent("guess_game:Gues"),
        r"has no Gues\n.*Guess",
    ),
    "a syntax error in an agent's file": (
        lambda place: place.agent("unfinished:Guess"),
        r"unfinished.py, line 1: SyntaxError",
    ),
    "an agent in the current directory": (
        lambda place: place.agent("guess_gam:Guess"),
        r"no module 'guess_gam' in .*\n.*package.module:Class",
    ),
    "--agent FILE": (
        lambda place: place.agent("guess_game.py"),
        r"names a file, not a module\n +write it as 'guess_game:Class'",
    ),
    "--backend that is no engine": (
        lambda place: place.start("--backend", place.service),
        r"prorl: .*\n.*if it is not an inference engine, correct the URL",
    ),
    "a body without a content type": (Place.post, r"Content-Type: application/json"),
    "no engine is up": (_no_engine, r"no inference engine has answered yet \(127.0.0.1:\d+"),
    "a client's URL without http://": (_client, r"write it as 'http://localhost:8080'"),
    "run returns None": (
        lambda place: place.rollout("guess"),
        r"Guess.run returned None.*\n.*FinishReason",
    ),
    "an agent that blocks the event loop": (
        lambda place: place.rollout("sleepy"),
        r"blocked for .* RUN of agent 'sleepy', rollout sleepy.0, at .*sleepy.py:9",
    ),
    "an agent without a name": (lambda place: place.agent("nameless:Guess"), r"has no name"),
    "an agent whose name is taken": (
        lambda place: place.agent("taken:Guess"),
        r"is named 'math', but .*MathAgent already is",
    ),
}


def rows() -> list[dict[str, object]]:
    """Returns one row per mistake: what was said, and whether that is good."""
    with _place() as place:
        return [_row(name, make(place), wanted) for name, (make, wanted) in MISTAKES.items()]


def _row(mistake: str, said: str, wanted: str) -> dict[str, object]:
    is_short = len(said.strip().splitlines()) <= MAX_LINES and "Traceback" not in said
    is_good = is_short and re.search(wanted, said) is not None
    return {"mistake": mistake, "good": is_good, "said": " / ".join(said.split("\n"))[:300]}


@contextmanager
def _place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        for name, source in MODULES.items():
            (directory / name).write_text(source)
        build_tiny_model(directory / "model")
        log = directory / "service.log"
        agents = ["--agent", "guess_game:Guess", "--agent", "sleepy:Sleepy"]
        before = os.getcwd()
        os.chdir(directory)  # the service finds agents where it is started
        try:
            with (
                local.engine(directory / "model", log=directory / "engine.log") as engine,
                local.service([engine.url], log=log, options=agents) as service,
            ):
                yield Place(directory, engine.url, service.url, log)
        finally:
            os.chdir(before)
