"""`prorl harnesses` as a user runs it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from prorl_service.gateway.harnesses import install, preset
from prorl_service.gateway.harnesses.store import Installed
from tests.cli.called import called
from tests.gateway.harnesses import tiny
from tests.gateway.harnesses.test_install import HANGS

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture
def pi(store_of_its_own: Path, tmp_path: Path) -> Installed:
    """A tiny tree under the name and version of pi."""
    packages = tiny.packages(tmp_path).model_copy(update={"version": preset.version_of("pi")})
    return install.install_packages("pi", packages, lambda _: None)


def run(*arguments: str, status: int = 0) -> str:
    done = called("harnesses", *arguments)
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def test_the_list_has_a_line_for_each_preset(pi: Installed) -> None:
    lines = {line.split()[0]: line.split() for line in run("list").splitlines()}
    assert list(lines) == ["name", *preset.names()]
    assert lines["pi"][1:5] == [pi.version, "chat", "yes", "0"]
    assert lines["pi_messages"][1:4] == [pi.version, "messages", "yes"]
    assert lines["codex"][2:5] == ["responses", "no", str(preset.load("codex").install.size_mb)]
    assert lines["python"][2] == "any"


def test_a_tree_is_verified_and_removed(pi: Installed) -> None:
    assert f"pi@{pi.version}: " in run("verify", "pi_messages")
    (pi.path / "node_modules/tiny-npm/cli.js").write_text("changed")
    said = run("verify", "pi", status=2)
    assert said == f"prorl: pi@{pi.version}: 1 files differ\n  node_modules/tiny-npm/cli.js\n"
    assert run("remove", f"pi@{pi.version}") == f"removed {pi.path}\n"
    assert not list(pi.path.parent.iterdir())
    assert "prorl harnesses install pi" in run("verify", "pi", status=2)


def test_an_installed_harness_is_not_installed_again(pi: Installed) -> None:
    said = run("install", "pi_responses", "pi")
    assert said.splitlines() == [
        "pi_responses runs the tree of pi",
        f"pi@{pi.version} is already installed",
        f"pi@{pi.version} is already installed",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("install",), "names: name at least one of claude_code, "),
        (("install", "pi", "pie"), "there is no harness 'pie'"),
        (("install", "pi@latest"), "'latest' is no version"),
        (("install", "pi@../x"), "'../x' is no version"),
        (("install", "python@2"), "python has the version 1 only"),
        (("remove", "codex"), "codex 0."),
        (("verify",), "requires an argument"),
    ],
)
def test_mistakes_are_one_line(
    store_of_its_own: Path, arguments: tuple[str, ...], said: str
) -> None:
    assert said in run(*arguments, status=2)
    assert not list(store_of_its_own.glob("*@*"))


def test_without_npm_the_others_are_installed_still(
    pi: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    said = run("install", "codex", "pi", status=2)
    assert "prorl: codex comes from npm, which is not installed (install Node.js" in said
    assert "apt-get install npm" in said
    assert f"pi@{pi.version} is already installed" in said


def test_sigterm_leaves_nothing(store_of_its_own: Path, tmp_path: Path) -> None:
    environment = tiny.fake_npm(tmp_path / "bin", HANGS)
    command = [sys.executable, "-m", "prorl_service.cli", "harnesses", "install", "codex"]
    process = subprocess.Popen(
        command, env={**os.environ, **environment}, stderr=subprocess.DEVNULL
    )
    while not list(store_of_its_own.glob(".making-*/half")):
        assert process.poll() is None
        time.sleep(0.02)
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGTERM
    assert list(store_of_its_own.iterdir()) == []
