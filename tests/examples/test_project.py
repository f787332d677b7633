"""The project that `prorl init` writes, by the commands of its README."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from prorl_service import local
from prorl_service.cli.init import FILES
from prorl_service.client import RolloutClient
from tests.cli.called import called

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)


def run(*command: str, cwd: Path, **variables: str) -> str:
    """Returns what the command prints, by the programs of this environment."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    inherited = {"PYTHONPATH": str(ROOT / "plugins/trl"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **inherited, "PATH": path, "ACCELERATE_USE_CPU": "1", **variables},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("own") / "My 1st 'agent' ü"
    made = called("init", directory)
    assert made.returncode == 0, made.stderr
    assert sorted(one.name for one in directory.iterdir()) == sorted(FILES)
    assert 'name = "my-1st-agent"' in (directory / "pyproject.toml").read_text()
    return directory


@pytest.fixture(scope="module")
def model(project: Path) -> Path:
    assert "24 with a solution that gets the full reward" in run(
        sys.executable, "start.py", cwd=project
    )
    return project / "model"


@contextmanager
def service(model: Path) -> Iterator[str]:
    """Runs the engine and the service that the README names."""
    options = ["--agent", f"{model.parent / 'agent.py'}:LedgerAgent"]
    with (
        local.engine(model, log=model.parent / "engine.log") as engine,
        local.service([engine.url], log=model.parent / "service.log", options=options) as process,
    ):
        yield process.url


def trained(project: Path, url: str, *, steps: int | None = None) -> tuple[float, float]:
    """Returns the mean rewards before and after so many steps, by default the README's."""
    script = (project / "train.py").read_text()
    if steps is not None:
        script = re.sub(r"STEPS = \d+", f"STEPS = {steps}", script)
    (project / "short.py").write_text(script)
    printed = run(sys.executable, "short.py", "model", cwd=project, PRORL_URL=url)
    said = r"mean reward on all tasks: ([\d.]+) before training, ([\d.]+) after it"
    found = re.search(said, printed)
    assert found is not None
    return float(found[1]), float(found[2])


def test_its_own_test_passes(project: Path) -> None:
    assert "3 passed" in run("pytest", "-q", cwd=project)


def test_its_readme_names_its_commands(project: Path) -> None:
    first, _ = BLOCK.findall((project / "README.md").read_text())
    commands = [line.split("#")[0].split() for line in first.splitlines()]
    [needed] = tomllib.loads((project / "pyproject.toml").read_text())["project"]["dependencies"]
    assert f"`{needed}`" in (project / "README.md").read_text()
    assert [words[:2] for words in commands] == [
        ["pytest"],
        ["python", "start.py"],
        ["prorl", "engine"],
        ["prorl", "serve"],
        ["python", "train.py"],
    ]


def test_it_trains(project: Path, model: Path) -> None:
    with service(model) as url, RolloutClient(url) as client:
        before, _ = trained(project, url, steps=2)
        assert client.status().policy_version >= 1
    assert before > 0.2


@pytest.mark.on_demand
@pytest.mark.timeout(1800)
def test_it_learns(project: Path, model: Path) -> None:
    with service(model) as url:
        before, after = trained(project, url)
    assert before + 0.15 < after


def test_a_directory_with_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    refused = called("init", tmp_path)
    assert refused.returncode == 2
    assert refused.stderr == f"prorl: {tmp_path} is not empty\n  name a new directory\n"
    assert [one.name for one in tmp_path.iterdir()] == ["mine"]
