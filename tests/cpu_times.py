"""CPU seconds of each test module: the order in which modules run, and a limit for each.

`--cpu-times FILE` writes what the modules of a run took, their processes included, and fails the
run if one took more than `LIMIT_S`. `tests/cpu_times.json` is what was measured last, of modules of
at least 5 s: with several workers the dearest ones run first. What a session ends after its last
test, such as processes that modules share, counts to no module.
"""

import json
import resource
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

LIMIT_S = 120
"""Most CPU seconds of a module in a short run, beside other legs on two cores: some modules were
measured at twice what they take alone."""
SESSION = "session"
MEASURED = Path(__file__).with_name("cpu_times.json")

_taken: dict[str, float] = {}


def _cpu_s() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cpu-times", type=Path, metavar="FILE", help="write the CPU seconds of each module"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    measured: dict[str, float] = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}
    items.sort(key=lambda item: -measured.get(_module(item), 0))


def _module(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


@contextmanager
def _counted(to: str) -> Iterator[None]:
    before = _cpu_s()
    try:
        yield
    finally:
        _taken[to] = _taken.get(to, 0) + _cpu_s() - before


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    with _counted(_module(item)):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    with _counted(_module(item)):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    with _counted(SESSION if nextitem is None else _module(item)):
        return (yield)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (sent := getattr(session.config, "workeroutput", None)) is not None:
        sent["cpu_times"] = _taken
    elif session.config.option.cpu_times is not None and _dear():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_testnodedown(node: object) -> None:
    for module, seconds in getattr(node, "workeroutput", {}).get("cpu_times", {}).items():
        _taken[module] = _taken.get(module, 0) + seconds


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if (file := config.option.cpu_times) is None:
        return
    ordered = sorted(_taken.items(), key=lambda taken: -taken[1])
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({module: round(taken, 1) for module, taken in ordered}, indent=1))
    terminalreporter.section(f"{sum(_taken.values()):.0f} CPU seconds")
    for module in _dear():
        terminalreporter.line(f"{module} took {_taken[module]:.0f} CPU seconds, over {LIMIT_S}")


def _dear() -> list[str]:
    return [module for module, seconds in _taken.items() if module != SESSION and seconds > LIMIT_S]
