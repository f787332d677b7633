"""Harnesses of one's own, from TOML files: named by command lines, services and tasks."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from prorl_service.agents.harness.data import HarnessData
from prorl_service.agents.registry import AgentRegistry
from prorl_service.client.harness import with_harness
from prorl_service.errors import InvalidRequest
from prorl_service.gateway.harnesses import install, preset
from prorl_service.sandbox.base import SandboxProvider
from prorl_service.schemas import Group
from prorl_service.server.settings import ServiceSettings
from prorl_service.testing.scripted_engine import CONTEXT_TOKENS, scripted_engine
from prorl_service.testing.trial import rollouts, trial_service
from tests.gateway.harnesses import tiny
from tests.gateway.harnesses.scripts import ANSWER, assert_exact, math_task, played, report

ROOT = Path(__file__).parents[3]
AIDER = ROOT / "examples/aider.toml"
ASKS_ONCE = Path(__file__).with_name("asks_once.toml").read_text()


@pytest.fixture(autouse=True)
def nothing_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preset, "_added", {})


@pytest.fixture
def asks_once(tmp_path: Path) -> Path:
    path = tmp_path / "asks_once.toml"
    path.write_text(ASKS_ONCE)
    return path


def harness_data(**fields: Any) -> HarnessData:
    return HarnessData.model_validate({"agent": "math", **fields})


def test_a_file_is_a_preset_under_its_name(asks_once: Path) -> None:
    with pytest.raises(InvalidRequest, match="there is no harness 'asks_once'"):
        preset.load("asks_once")
    assert preset.add(asks_once) == "asks_once"
    assert "asks_once" in preset.names()
    assert preset.load("asks_once").about == "Asks once."
    asks_once.write_text(ASKS_ONCE.replace("once.", "again."))
    preset.add(asks_once)
    assert preset.load("asks_once").about == "Asks again."


def test_a_file_may_vary_another_preset(tmp_path: Path) -> None:
    path = tmp_path / "my_pi.toml"
    path.write_text('variant_of = "pi"\nabout = "x"\n[environment]\nMINE = "1"\n')
    preset.add(path)
    assert preset.load("my_pi").install.tree == "pi"
    assert preset.load("my_pi").environment.items() > preset.load("pi").environment.items()
    assert preset.load("my_pi", "0.73.1").install.version == "0.73.1"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("pi.toml", ASKS_ONCE, "there is a preset 'pi' already"),
        ("My Own.toml", ASKS_ONCE, "'My Own' is none"),
        ("a@1.toml", ASKS_ONCE, "'a@1' is none"),
        ("mine.toml", None, "No such file"),
        ("mine.toml", "about = ", "mine.toml: "),
        ("mine.toml", "dialect = 'chat'", "harness mine: about: "),
        ("mine.toml", "about = 'x'\ninstall.pip = ['x==1']", "give `version`"),
        ("mine.toml", "about = 'x'\nvariant_of = 'pie'", "there is no harness 'pie'"),
    ],
)
def test_a_file_that_is_no_preset(name: str, text: str | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidRequest) as caught:
        preset.add(path)
    assert said in caught.value.message
    assert preset.names() == sorted(preset._shipped())


def test_the_page_shows_the_example() -> None:
    _, _, text = AIDER.read_text().partition("\n")
    assert f"```toml\n{text}```" in (ROOT / "docs/harnesses.md").read_text()


def test_a_task_names_a_version_with_the_harness() -> None:
    data = harness_data(harness="pi@0.73.1")
    assert (data.harness, data.version) == ("pi", "0.73.1")
    assert harness_data(harness="pi@0.73.1", version="0.73.1") == data
    assert "@mariozechner/pi-coding-agent" in data.preset().command[1]
    with pytest.raises(ValidationError, match="another version"):
        harness_data(harness="pi@0.73.1", version="1.6.0")
    with pytest.raises(InvalidRequest, match="there is no harness 'pie'"):
        harness_data(harness="pie@1")


@pytest.mark.parametrize("name", ["asks_once.toml", "./asks_once.toml", "/tmp/asks_once.toml"])
def test_a_task_names_no_file(name: str) -> None:
    with pytest.raises(InvalidRequest, match="there is no harness"):
        harness_data(harness=name)


@pytest.mark.processes
@pytest.mark.slow
async def test_a_service_runs_the_presets_that_it_is_given(
    asks_once: Path, isolating: SandboxProvider
) -> None:
    async with scripted_engine([[f"It is {ANSWER}."]]) as engine:
        settings = ServiceSettings(preset=(asks_once,))
        made = trial_service(AgentRegistry(), [engine.spec], settings, provider=isolating)
        async with made as service:
            group = Group(group_id="g", task=with_harness(math_task(isolating), "asks_once"))
            await service.submit([group])
            [rollout] = [one async for one in rollouts(service, group)]
    assert rollout.reward == 1.0, rollout.error


@pytest.mark.processes
async def test_a_program_that_leaves_tokens_unused_is_told_of_more(
    tmp_path: Path, isolating: SandboxProvider
) -> None:
    path = tmp_path / "wasteful.toml"
    asks = ASKS_ONCE.replace('"${prompt}"]', '"window: ${context}"]')
    path.write_text(f"spare_tokens = 4096\n{asks.replace('print(', 'print(sys.argv[2], ')}")
    preset.add(path)
    run = await played("wasteful", [f"It is {ANSWER}."], isolating)
    assert f"window: {CONTEXT_TOKENS + 4096}" in str(report(run)["output"])


def prorl(*arguments: str, status: int = 0) -> str:
    command = [sys.executable, "-m", "prorl_service.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == status, said
    assert "Traceback" not in said
    return said


@pytest.mark.processes
@pytest.mark.slow
def test_prorl_try_runs_a_file(asks_once: Path, tmp_path: Path) -> None:
    replies, task = tmp_path / "replies.jsonl", tmp_path / "task.json"
    replies.write_text(json.dumps(f"It is {ANSWER}.") + "\n")
    messages = [{"role": "user", "content": "What is 6 * 7?"}]
    task.write_text(json.dumps({"messages": messages, "data": {"answer": "42"}}))
    given = ("try", "math", "--task", str(task), "--replies", str(replies))
    result = tmp_path / "result.json"
    prorl(*given, "--harness", str(asks_once), "--sandbox", "bubblewrap", "--json", str(result))
    assert json.loads(result.read_text())["reward"] == 1.0
    assert "there is no harness 'pie'" in prorl(*given, "--harness", "pie@1", status=2)


@pytest.mark.processes
@pytest.mark.slow
def test_a_file_is_installed_listed_verified_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRORL_HARNESSES", str(tmp_path / "harnesses"))
    file = tmp_path / "tiny.toml"
    packages = f'version = "1.0.0"\npip = ["{tiny.wheel(tmp_path)}"]\n'
    file.write_text(f'about = "x"\ncommand = ["true"]\n[install]\n{packages}')
    assert "tiny@1.0.0: 1 packages" in prorl("harnesses", "install", str(file))
    lines = prorl("harnesses", "list").splitlines()
    assert lines[-1].split()[:3] == ["tiny", "1.0.0", "yes"]
    assert "files as installed" in prorl("harnesses", "verify", str(file))
    assert prorl("harnesses", "remove", str(file)).startswith("removed ")


@pytest.mark.processes
@pytest.mark.harnesses
@pytest.mark.slow
@pytest.mark.on_demand
@pytest.mark.timeout(900)
async def test_aider_does_its_work(isolating: SandboxProvider) -> None:
    """The eighth harness of docs/harnesses.md: 645 MB."""
    install.install(preset.add(AIDER), lambda _: None)
    edit = "a.txt\n```\nhello\n```\n"
    run = await played("aider@0.86.2", [f"A file first.\n\n{edit}\nIt is {ANSWER}."], isolating)
    assert run.reward == 1.0, report(run)
    assert report(run)["exit_code"] == 0
    assert report(run)["version"] == "0.86.2"
    assert run.unused_replies == 0
    assert_exact(run)
