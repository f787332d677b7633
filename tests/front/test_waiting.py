"""A trainer's job that waits for services, which start when the cluster has room for them."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from prorl_service.errors import ProRLError
from prorl_service.front.claim import DirectoryClaim
from prorl_service.front.discovery import Announcements
from prorl_service.front.services import Services
from prorl_service.inference.pool import BackendPool
from tests.front.conftest import service
from tests.programs import prorl

pytestmark = pytest.mark.processes


@asynccontextmanager
async def found(directory: Path, token: str | None = None) -> AsyncIterator[Services]:
    """Services of a front that looks for them in `directory`."""
    claim = DirectoryClaim(directory)
    async with BackendPool(directory.with_name("weights")) as engines:
        services = Services(claim, token, engines)
        looking = asyncio.create_task(services.serve())
        yield services
        looking.cancel()
        await asyncio.wait([looking])
    claim.release()


async def test_a_wait_ends_once_enough_services_answer_and_reports_how_many(tmp_path: Path) -> None:
    lines: list[str] = []
    directory = tmp_path / "services"
    directory.mkdir()
    (directory / "killed.json").write_text('{"url": "http://127.0.0.1:9"}')
    (directory / "other.json").write_text("{")
    async with found(directory) as services:
        waiting = asyncio.create_task(services.until_answering(1, 100, lines.append))
        while not lines:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        with service("a", tmp_path):
            await waiting
    assert lines[0].startswith("0 of 1 services answer (none yet), after 0 s of 100")
    assert lines[-1].startswith("1 of 1 services answer (a), after ")


async def test_a_wait_that_times_out_reports_what_each_service_said(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    with service("a", tmp_path, "--token-file", str(token)):
        async with found(tmp_path / "services", "another-one") as services:
            with pytest.raises(ProRLError, match="0 of 2 services answer") as late:
                await services.until_answering(2, 3, lambda _: None)
    assert "\n  a: " in late.value.message
    assert "requires its own bearer token" in late.value.message
    assert str(tmp_path / "services") in late.value.hint


def test_the_front_command_exits_with_the_error_of_its_wait(tmp_path: Path) -> None:
    options = ("--wait-s", "0", "--journal", "none")
    done = prorl("front", "--services", tmp_path, *options)
    assert done.returncode == 2
    assert "prorl: 0 of 1 services answer (none yet)" in done.stderr
    assert "Traceback" not in done.stderr
    mistyped = tmp_path / "mistyped"
    done = prorl("front", "--services", mistyped, *options)
    assert done.returncode == 2
    assert f"prorl: --services {mistyped}: no such directory" in done.stderr
    assert not mistyped.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_wait(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "prorl_service.cli", "front", "--services", str(tmp_path)]
    with subprocess.Popen(
        [*command, "--port", "0", "--journal", "none"], stderr=subprocess.PIPE, text=True
    ) as front:
        assert front.stderr is not None
        assert any("0 of 1 services answer" in line for line in front.stderr)
        front.send_signal(number)
        rest = front.stderr.read()
    assert front.returncode == -number
    assert "Traceback" not in rest


def test_a_service_is_announced_while_it_takes_rollouts(tmp_path: Path) -> None:
    with service("a", tmp_path, "--announce-host", "localhost") as running:
        port = running.url.rpartition(":")[2]
        assert Announcements(tmp_path / "services").look() == {"a": f"http://localhost:{port}"}
        running.kill()
        assert Announcements(tmp_path / "services").look()  # the killed service could not remove it
    with service("a", tmp_path):
        pass
    assert Announcements(tmp_path / "services").look() == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--announce", "/proc/services/a.json"], "cannot announce in /proc/services"),
        (["--announce", "a"], "a would not be found"),
        (["--resume"], "--resume needs a run"),
        (["--run", "a/b"], "a run's name is letters"),
        (["--journal", "/nowhere/j.sqlite"], "--journal /nowhere/j.sqlite: no directory /nowhere"),
    ],
)
def test_wrong_options_are_named(options: list[str], message: str) -> None:
    done = prorl("serve", "--sandbox", "process", *options)
    assert done.returncode == 2
    assert message in done.stderr
