"""A tiny model for all tests, and rules for all: no test passes whose processes logged an error.

`--fast` runs those that start no process and take no time, in under a minute.
"""

import asyncio
import multiprocessing.process
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO
from unittest.mock import patch

import pytest
import uvloop
from hypothesis import HealthCheck, settings

from prorl_service import local
from prorl_service.net import chat_model
from prorl_service.tokens.chat import ChatFormat
from prorl_service.utils import logs
from tests import zygote

pytest_plugins = ["tests.cpu_times"]

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

EXPECTED = "logs"
"""Marker of tests whose processes log errors; its arguments are patterns of those errors."""


SLOW = ("processes", "slow")
"""Markers of tests that `--fast` leaves out."""
LEFT_OUT = re.compile(rf"^pytestmark = .*\b({'|'.join(SLOW)})\b", re.MULTILINE)
STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn")
"""Audit events of a process that starts another one."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fast", action="store_true", help=f"leave out tests marked {' or '.join(SLOW)}"
    )
    parser.addoption(
        "--short",
        action="store_true",
        help="leave out tests marked on_demand, and most parameters of those marked sampled",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Does not import a module that `--fast` leaves out whole: that takes a third of the time."""
    if not config.option.fast or collection_path.suffix != ".py":
        return None
    return LEFT_OUT.search(collection_path.read_text(encoding="utf-8")) is not None or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = set[pytest.Item]()
    if config.option.fast:
        left_out |= {item for item in items if any(map(item.get_closest_marker, SLOW))}
    if config.option.short:
        left_out |= {item for item in items if item.get_closest_marker("on_demand")}
        left_out |= _most(item for item in items if item not in left_out)
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=[*left_out])


def _most(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Returns what a sample of the parameters leaves out."""
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled"):
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out = set[pytest.Item]()
    for alike in functions.values():
        mark = alike[0].get_closest_marker("sampled")
        wanted = mark.args[0] if mark else len(alike)
        taken = {place * len(alike) // wanted for place in range(wanted)}
        left_out |= {item for place, item in enumerate(alike) if place not in taken}
    return left_out


@pytest.fixture(autouse=True, scope="session")
def _no_processes(request: pytest.FixtureRequest) -> None:
    """Has a test fail that starts a process, is not marked so, and thus is part of `--fast`."""
    if not request.config.option.fast:
        return

    def check(event: str, _: object) -> None:
        if event in STARTS:
            raise RuntimeError("mark this test with pytest.mark.processes")

    def start(self: multiprocessing.process.BaseProcess) -> None:
        check(STARTS[0], self)

    sys.addaudithook(check)
    multiprocessing.process.BaseProcess.start = start  # type: ignore[method-assign]


def pytest_configure(config: pytest.Config) -> None:
    """Reruns each failed test once, and lists it, if `PRORL_TEST_RERUN` is set."""
    if os.environ.get("PRORL_TEST_RERUN"):
        config.option.reruns = 1
        config.option.reruns_delay = 10
        config.option.reportchars += "R"


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Runs asynchronous tests on the service's event loop."""
    return {"uvloop": uvloop.new_event_loop}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Names a failure at once: a run that is cut off prints no summary."""
    if report.outcome in ("failed", "rerun") and "PYTEST_XDIST_WORKER" not in os.environ:
        cause = report.longreprtext.strip().rpartition("\n")[2]
        sys.stderr.write(f"\n{report.outcome}: {report.nodeid}: {cause[:200]}\n")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Shows why a test ran again: a test that passes the second time may still show a defect."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.section(f"first run of {report.nodeid}")
        report.toterminal(terminalreporter._tw)


@pytest.fixture(autouse=True, scope="session")
def _warm_processes() -> Iterator[None]:
    """Has engines, services and fronts of `local` start without imports of their own."""
    fresh = local._start

    def start(
        command: Sequence[str], output: IO[bytes], environment: Mapping[str, str]
    ) -> "subprocess.Popen[bytes]":
        warm = zygote.start(command, output, environment)
        return fresh(command, output, environment) if warm is None else warm

    with patch.object(local, "_start", start):
        yield


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has calls of chat models that failed be repeated at once."""
    monkeypatch.setattr(chat_model, "FIRST_DELAY_S", 0.0)
    monkeypatch.setattr(chat_model, "LONGEST_DELAY_S", 0.0)


@pytest.fixture(autouse=True)
def _no_errors_in_logs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Checks `*.log` files below the test's own `tmp_path`."""
    yield
    if (directory := request.node.funcargs.get("tmp_path")) is not None:
        expected = _expected([request.node])
        _check([*directory.glob("*.log"), *directory.glob("*/*.log")], expected)


@pytest.fixture(autouse=True, scope="session")
def _no_errors_in_shared_logs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Checks the logs of processes that several tests share for errors that no test expects."""
    yield
    shared = tmp_path_factory.getbasetemp()
    own = re.compile("test_.*")
    expected = _expected(request.session.items)
    _check([one for one in shared.glob("*/*.log") if not own.match(one.parent.name)], expected)


def _expected(items: Iterable[pytest.Item]) -> list[str]:
    markers = (marker for item in items for marker in item.iter_markers(EXPECTED))
    return [pattern for marker in markers for pattern in marker.args]


def _check(files: list[Path], expected: list[str]) -> None:
    found = [
        f"{file.name}: {error}"
        for file in files
        for error in logs.errors(file.read_text(errors="replace"))
        if not any(re.search(one, error) for one in expected)
    ]
    assert not found, "\n".join(["errors in logs:", *found])


@pytest.fixture(scope="session", autouse=True)
def state_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keeps files that services leave for their user, such as tokens, out of the home directory."""
    with pytest.MonkeyPatch.context() as patch:
        directory = tmp_path_factory.mktemp("state")
        patch.setenv("XDG_STATE_HOME", str(directory))
        patch.delenv("PRORL_TOKEN", raising=False)
        yield directory / "prorl"


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 with a tokenizer that knows fewer ids than the model samples."""
    from prorl_service.inference.reference_engine.tiny import build_tiny_model

    directory = tmp_path_factory.mktemp("tiny-model")
    build_tiny_model(directory)
    return directory


@pytest.fixture(scope="session")
def seeing_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen2.5-VL."""
    from prorl_service.inference.reference_engine.tiny import build_tiny_model

    directory = tmp_path_factory.mktemp("seeing-model")
    build_tiny_model(directory, sees=True)
    return directory


@pytest.fixture(scope="session")
def chat(tiny_model: Path) -> ChatFormat:
    return ChatFormat.load(tiny_model)
