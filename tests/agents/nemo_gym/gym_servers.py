"""Real resources servers of NeMo Gym's wheel, each in its own process, and their own rows."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest

from prorl_service import local
from prorl_service.client.nemo_gym import tasks_in
from prorl_service.local import LocalProcess
from prorl_service.schemas import Task
from prorl_service.server.settings import NemoGymOptions, ServiceSettings

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-nemo-gym/bin/python"
WEATHER, SYNONYMS, COUNTER = (
    "example_single_tool_call",
    "example_multi_step",
    "example_session_state_mgmt",
)
REASONING, MULTI_REWARD = "reasoning_gym", "example_tool_call_multireward"
NAMES = (WEATHER, SYNONYMS, COUNTER, REASONING, MULTI_REWARD)
START_TIMEOUT_S = 300
NEEDED = pytest.mark.skipif(
    not (ROOT / ".venv-nemo-gym/.installed").is_file(), reason="needs scripts/setup-nemo-gym"
)


@contextmanager
def starting(name: str, directory: Path, port: int | None = None) -> Iterator[LocalProcess]:
    """Runs the wheel's server of that name, which answers after `until_up`.

    It prints the traceback of each error that it answers: its log is not named `*.log`.
    """
    port = local.free_port() if port is None else port
    log = directory / f"{name}.txt"
    with log.open("ab") as output:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", str(ROOT / "scripts/nemo-gym"), name, str(port)],
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
        )
    server = LocalProcess(f"http://127.0.0.1:{port}", log, process)
    try:
        yield server
    finally:
        server.stop()


def until_up(server: LocalProcess) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    with httpx.Client(trust_env=False, timeout=5) as http:
        while server.process.poll() is None and time.monotonic() < deadline:
            try:
                if http.get(f"{server.url}/health").is_success:
                    return
            except httpx.TransportError:
                time.sleep(0.1)
    raise AssertionError(server.log.read_text(errors="replace")[-2000:])


@cache
def site_packages() -> Path:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    found = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True)
    return Path(found.stdout.strip())


def rows_of(name: str) -> Path:
    return site_packages() / "resources_servers" / name / "data/example.jsonl"


def tasks_of(name: str) -> list[Task]:
    """Returns the tasks of the rows that come with the server, whose name is the server's."""
    return tasks_in(rows_of(name), server=name)


def settings(**urls: str) -> ServiceSettings:
    return ServiceSettings(nemo_gym=options(**urls))


def options(**urls: str) -> NemoGymOptions:
    return NemoGymOptions(nemo_gym=tuple(f"{name}={url}" for name, url in urls.items()))


def checked_by_the_wheel(response: dict[str, Any]) -> "subprocess.CompletedProcess[str]":
    """Has NeMo Gym's own class read a response, and print its output's types and its text."""
    code = (
        "import sys; from nemo_gym.openai_utils import NeMoGymResponse as R;"
        "r = R.model_validate_json(sys.stdin.read());"
        "print([type(i).__name__ for i in r.output], r.output_text, r.usage.total_tokens)"
    )
    return subprocess.run(
        [PYTHON, "-c", code],
        input=json.dumps(response),
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )
