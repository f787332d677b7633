"""`harbor run` with our environment: rewards are right, and what goes wrong is said.

Harbor's own probes judge tasks of ours: `oracle` runs their solutions, `nop` does nothing.
"""

import asyncio
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from prorl_service.sandbox.images import ImageCache
from tests.harbor.jobs import HARBOR, Job, Trial, trial
from tests.harbor.template import MODES, template

pytestmark = [pytest.mark.processes, pytest.mark.slow]

EXAMPLES = Path(__file__).parents[2] / "examples" / "harbor"
GREETING = """
schema_version = "1.4"
[task]
name = "prorl/{name}"
{more}
[environment]
docker_image = "{image}"
network_mode = "no-network"
"""


def new_task(
    tasks: Path, name: str, *, solution: str, test: str, more: str = "", image: str | None = None
) -> Path:
    """Makes a task of scripts of bash; the image is that of the other tasks."""
    task = tasks / name
    for directory, file, script in (("solution", "solve", solution), ("tests", "test", test)):
        (task / directory).mkdir(parents=True)
        (task / directory / f"{file}.sh").write_text(f"#!/bin/bash\n{script}\n")
    (task / "environment").mkdir()
    (task / "instruction.md").write_text(name)
    values = {"name": name, "more": more, "image": image or tasks.parent / "image.sif"}
    (task / "task.toml").write_text(GREETING.format(**values))
    return task


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.on_demand
def test_the_template_of_harbor_gets_the_same_rewards_from_both(
    tmp_path: Path, image: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRORL_CACHE", str(tmp_path / "cache"))
    asyncio.run(ImageCache().build("base", str(image)))
    template(HARBOR, tmp_path / "tasks", mode, base="local:base")
    name = f"template-{mode}"
    for agent, reward in (("oracle", 1.0), ("nop", 0.0)):
        assert rewards(Job(tmp_path / "tasks", agent=agent).wait()) == {name: {"reward": reward}}
    command = [sys.executable, "-m", "prorl_service.cli", "harbor", "check"]
    checked = subprocess.run(
        [*command, str(tmp_path / "tasks")], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def rewards(trials: dict[str, list[Trial]]) -> dict[str, dict[str, float] | None]:
    assert [one.error for many in trials.values() for one in many if one.error] == []
    return {name: only.rewards for name, [only] in trials.items()}


def test_the_oracle_gets_the_reward_of_every_task(tasks: Path) -> None:
    job = Job(tasks, "-n", "3")
    trials = job.wait()
    assert rewards(trials) == {
        "greeting": {"reward": 1.0},
        "separate": {"reward": 1.0},
        "steps": {"reward": 2.0, "files": 1.5},
    }
    [greeting] = trials["greeting"]
    stdout = greeting.directory / "verifier" / "test-stdout.txt"
    assert stdout.read_text() == "hello world\n"
    [separate] = trials["separate"]
    out = separate.directory / "artifacts" / "logs"
    assert "outside" not in [path.name for path in out.rglob("*")]
    assert job.files() == []


@pytest.mark.on_demand
def test_the_examples_get_the_rewards_that_they_get_from_the_service(
    tmp_path: Path, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRORL_CACHE", str(tmp_path / "cache"))
    asyncio.run(ImageCache().build("base", str(image)))
    tasks = tmp_path / "tasks"
    shutil.copytree(EXAMPLES, tasks, ignore=shutil.ignore_patterns("hostile"))
    for file in tasks.rglob("Dockerfile"):
        file.write_text(re.sub(r"FROM debian:\S+", "FROM local:base", file.read_text()))
    for agent, reward in (("oracle", 1.0), ("nop", 0.0)):
        found = rewards(Job(tasks, "-n", "2", agent=agent).wait())
        totals = {name: values["reward"] for name, values in found.items() if values}
        assert totals == {file.name: reward for file in tasks.iterdir()}


def test_doing_nothing_gets_no_reward(tasks: Path) -> None:
    found = rewards(Job(tasks, "-n", "3", agent="nop").wait())
    assert found["greeting"] == {"reward": 0.0}
    assert found["separate"] == {"reward": 0.0}
    assert found["steps"] == {"reward": 0.0, "files": 0.0}


def test_eight_trials_in_parallel_share_a_container_and_nothing_else(tasks: Path) -> None:
    task = new_task(
        tasks,
        "alone",
        solution="echo x >>/marker; sleep 1",
        test="wc -l </marker >/logs/verifier/reward.txt",
    )
    job = Job(task, "-k", "8", "-n", "8")
    [trials] = job.wait().values()
    assert [one.error for one in trials] == [""] * 8
    assert [one.rewards for one in trials] == [{"reward": 1.0}] * 8
    assert job.files() == []


def test_what_goes_wrong_is_an_exception_of_its_kind(tasks: Path) -> None:
    """All in one run: each trial ends as it should whatever the others do."""
    for name in ("greeting", "separate", "steps"):
        shutil.rmtree(tasks / name)
    scored = "echo 1 >/logs/verifier/reward.txt"
    new_task(
        tasks, "slow-test", solution="true", test="sleep 300", more="[verifier]\ntimeout_sec = 2"
    )
    new_task(
        tasks, "slow-agent", solution="sleep 300", test=scored, more="[agent]\ntimeout_sec = 2"
    )
    new_task(tasks, "no-reward", solution="true", test="true")
    new_task(tasks, "no-image", solution="true", test=scored, image="local:no-such-image")
    new_task(tasks, "kills-all", solution="kill -KILL -1; kill -KILL 1; true", test=scored)
    left = "setsid sleep 300 & setsid setsid sleep 300 >/dev/null 2>&1 & disown -a; exit 3"
    new_task(tasks, "leaves-servers", solution=left, test=scored)
    job = Job(tasks, "-n", "3")
    found = {name: only for name, [only] in job.wait().items()}
    assert found["slow-test"].error.startswith("VerifierTimeoutError")
    assert found["slow-test"].rewards is None
    # The agent's own time-out is a command's, and Harbor grades what there is.
    assert "timed out after 2" in found["slow-agent"].error
    assert found["no-reward"].error.startswith("RewardFileNotFoundError")
    assert found["no-image"].error.startswith("SandboxBuildFailedError: there is no image local:")
    for name in ("kills-all", "leaves-servers"):
        assert (found[name].error, found[name].rewards) == ("", {"reward": 1.0}), name
    assert job.files() == []


def test_a_network_is_refused_before_anything_starts_or_done_without(tasks: Path) -> None:
    task = tasks / "greeting"
    text = (task / "task.toml").read_text()
    (task / "task.toml").write_text(text.replace("no-network", "public"))
    refused = Job(task)
    assert refused.process.wait(120) != 0
    assert "--ek without_network=true" in refused.log
    done = trial(task, "--ek", "without_network=true", agent="oracle")
    assert (done.error, done.rewards) == ("", {"reward": 1.0})
