"""The wheel in environments that have nothing else: the client alone, and the service."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from prorl_service import __version__, local
from prorl_service.net.credentials import authorization
from prorl_service.testing import StubEngine, byte_model
from prorl_service.testing.replies import token_ids
from prorl_service.tokens.chat import ChatFormat
from tests.programs import ran

pytestmark = [pytest.mark.processes, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
CLIENT = """
import json, sys
from prorl_service.client import RolloutClient
from prorl_service.schemas import Group, Message, Task

messages = [Message(role="user", content="Guess.")]
_, url, agent, data = sys.argv
task = Task(task_id="t", agent=agent, messages=messages, data=json.loads(data))
with RolloutClient(url) as client:
    client.submit([Group(group_id=agent, task=task, n=1)])
    [rollout] = client.wait([f"{agent}.0"], 60)
print(rollout.state, rollout.reward)
"""


class Environment:
    def __init__(self, directory: Path) -> None:
        self.bin = directory / "bin"

    def install(self, *requirements: str) -> None:
        pip = (str(self.bin / "python"), "-m", "pip", "--disable-pip-version-check")
        subprocess.run([*pip, "install", "-qq", *requirements], check=True, timeout=500)

    def run(self, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        variables = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
        return ran(self.bin / command[0], *command[1:], cwd=cwd, env=variables)


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with wheel and sdist: that of `PRORL_TEST_DIST`, or one made of the checkout."""
    if made := os.environ.get("PRORL_TEST_DIST"):
        return Path(made)
    directory = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300)
    return directory


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    [wheel] = dist.glob("*.whl")
    return wheel


def contents(wheel: Path) -> dict[str, bytes]:
    """Returns all files but the list of their digests."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/RECORD")]
        return {name: archive.read(name) for name in names}


def test_the_sdist_makes_the_same_wheel(dist: Path, wheel: Path, tmp_path: Path) -> None:
    [sdist] = dist.glob(f"prorl_service-{__version__}.tar.gz")
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(tmp_path))
    command = [sys.executable, "-m", "pip", "wheel", "-qq", *options, str(sdist)]
    subprocess.run(command, check=True, timeout=300)
    [made] = tmp_path.glob("*.whl")
    assert contents(made) == contents(wheel)
    plugins = {
        "prorl_trl",
        "prorl_verl",
        "hydra_plugins",
        "prorl_vllm",
        "prorl_sglang",
        "prorl_harbor",
        "prorl_tinker",
    }
    assert {name.partition("/")[0] for name in contents(wheel)} == {
        "prorl_service",
        f"prorl_service-{__version__}.dist-info",
        *plugins,
    }


def test_the_version_is_the_same_everywhere() -> None:
    for name, line in (
        ("pyproject.toml", f'version = "{__version__}"'),
        ("CITATION.cff", f"version: {__version__}"),
        ("CHANGELOG.md", f"## {__version__} ("),
        ("docs/install.md", f"prorl_service-{__version__}-py3-none-any.whl"),
    ):
        assert line in (ROOT / name).read_text(), name


@pytest.fixture(scope="module")
def client(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    environment = made(tmp_path_factory.mktemp("client"))
    environment.install(str(wheel))
    return environment


@pytest.fixture(scope="module")
def server(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    environment = made(tmp_path_factory.mktemp("server"))
    environment.install(f"{wheel}[server]")
    return environment


def made(directory: Path) -> Environment:
    """Makes an environment of `PRORL_TEST_PYTHON`, or of the Python that runs the tests."""
    python = os.environ.get("PRORL_TEST_PYTHON", sys.executable)
    subprocess.run([python, "-m", "venv", str(directory)], check=True, timeout=120)
    return Environment(directory)


class Sixty(StubEngine):
    """Answers 60, whatever it is asked."""

    def __init__(self, model: Path) -> None:
        super().__init__(model, lambda _: ())
        self.chat = ChatFormat.load(str(model), None)

    def answer(self, prompt: list[int], session_id: str) -> tuple[list[int], bool]:
        return token_ids("60", self.chat)


@contextmanager
def service(server: Environment, directory: Path) -> Iterator[str]:
    """Runs the service of that environment, with the agent of an example."""
    byte_model.write(directory)
    shutil.copy(ROOT / "examples/own_agent.py", directory)
    with Sixty(directory).in_thread() as engine:
        command = [str(server.bin / "prorl"), "serve", "--backend", engine.url]
        command += ["--journal", "none", "--agent", "own_agent:Guess"]
        variables = {"PYTHONPATH": str(directory)}
        log = directory / "service.log"
        with local.running(command, log=log, environment=variables) as process:
            yield process.url


def installed(environment: Environment, directory: Path) -> set[str]:
    listed = environment.run("python", "-m", "pip", "list", "--format=freeze", cwd=directory)
    return {line.partition("==")[0].lower() for line in listed.stdout.splitlines()}


def test_the_client_needs_little(client: Environment, tmp_path: Path) -> None:
    packages = installed(client, tmp_path)
    assert {"prorl-service", "httpx", "pydantic"} <= packages
    assert len(packages) <= 16, sorted(packages)
    for command in ("prorl", "prorl-service"):
        told = client.run(command, "serve", cwd=tmp_path)
        assert told.returncode == 1
        assert "this environment has the client alone" in told.stderr
        assert "pip install 'prorl-service[all]'" in told.stderr


def test_a_service_of_the_wheel_runs_rollouts(
    client: Environment, server: Environment, tmp_path: Path
) -> None:
    with service(server, tmp_path) as url, httpx.Client(base_url=url) as http:
        page = http.get("/")
        assert page.status_code == 200
        assert http.get("/page/vendor/htm-preact.js").status_code == 200
        assert http.get("/docs", headers=authorization(url)).status_code == 200
        ran = client.run("python", "-c", CLIENT, url, "guess", '{"secret": 60}', cwd=tmp_path)
        assert ran.stdout == "done 1.0\n", ran.stderr
        refused = client.run("python", "-c", CLIENT, url, "math", '{"answer": "1"}', cwd=tmp_path)
        assert "pip install 'prorl-service[math]'" in refused.stderr


@pytest.mark.parametrize(
    "arguments", [["doctor"], ["install", "bubblewrap"], ["token"], ["init", "own"]]
)
def test_commands_work_without_a_checkout(
    server: Environment, tmp_path: Path, arguments: Sequence[str]
) -> None:
    done = server.run("prorl", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "scripts/" not in done.stdout
