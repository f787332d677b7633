"""The two ways to run tests, and grading in a sandbox that only pretends to run them."""

import json
import re
import threading
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from typing import Any

import pytest
from pydantic import ValidationError

from prorl_service.agents.swe import pytest_run
from prorl_service.agents.swe.data import SweData, SweEnvironment
from prorl_service.agents.swe.evaluation import grade_patch
from prorl_service.rewards.swe.grade import Expected, Results, TestRun, read_run
from prorl_service.sandbox.base import ToolResult
from prorl_service.testing import FakeSandbox

TESTS = "tests/test_a.py"
IDS = [f"{TESTS}::test_{number}" for number in range(40_000)]
DATA = SweData(
    instance_id="i",
    test_patch="",
    FAIL_TO_PASS=IDS[:1],
    PASS_TO_PASS=IDS[1:],
    environment=SweEnvironment(repository="/r", test_files=[TESTS]),
)


def sandbox_of_many_tests() -> FakeSandbox:
    """Returns a sandbox in which all of `IDS` pass, but for those that were changed."""

    def answer(name: str, arguments: Mapping[str, Any]) -> ToolResult:
        command = arguments["command"]
        for path in re.findall(r"> (/tmp/\w+\.raw)", command):
            change = f":100644 100644 {'a' * 40} {'b' * 40} M"
            sandbox.files[path] = f"{change}\0package/a.py\0".encode()
        exit_code = 0
        if config := re.search(r"/tmp/\w+/config", command):
            write(json.loads(sandbox.files[config[0]]))
            exit_code = 1
        return ToolResult("tree", data={"exit_code": exit_code, "timed_out": False})

    def write(config: dict[str, Any]) -> None:
        tests = sandbox.files[f"/r/{TESTS}"].decode()
        names = [name for name in ("test_0", "test_1") if f"{name}():\n    x\n\n\n" not in tests]
        failing = {f"{TESTS}::{name}" for name in names}
        lines: list[dict[str, object]] = [{"kind": "collected", "ids": IDS}]
        for id_ in IDS:
            for when in ("setup", "call", "teardown"):
                failed = when == "call" and id_ in failing
                outcome = "failed" if failed else "passed"
                about = {"id": id_, "when": when, "outcome": outcome, "raised": failed}
                lines.append({"kind": "phase", **about, "xfail": False})
        lines.append({"kind": "end", "exit_code": 1})
        signed = (json.dumps({**line, "nonce": config["nonce"]}) for line in lines)
        sandbox.files[config["results"]] = "\n".join(signed).encode()

    sandbox = FakeSandbox(answer)
    sandbox.files[f"/r/{TESTS}"] = b"def test_0():\n    x\n\n\ndef test_1():\n    x\n\n\n"
    return sandbox


@pytest.mark.slow
async def test_many_records_are_not_read_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def noted(run: TestRun, expected: Expected, changed: Collection[str]) -> Results:
        threads.append(threading.current_thread())
        return read_run(run, expected, changed)

    monkeypatch.setattr(pytest_run, "read_run", noted)
    report = await grade_patch(lambda: nullcontext(sandbox_of_many_tests()), DATA, b"a patch")
    assert report.resolved, report.summary
    assert report.pass_to_pass == len(IDS) - 1
    assert len(threads) == 2
    assert threading.main_thread() not in threads


BY_LOG = {"test_command": "./runtests", "log_parser": "parse_log_django"}
BY_PYTEST = {"test_files": ["tests"]}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, "give test_files for pytest, or test_command and log_parser"),
        ({"test_command": "./runtests"}, "go together"),
        ({"log_parser": "parse_log_django"}, "go together"),
        (BY_LOG | BY_PYTEST, "or test_files, pytest_arguments"),
        (BY_LOG | {"pytest_arguments": ["-x"]}, "or test_files, pytest_arguments"),
        (BY_LOG | {"import_paths": ["src"]}, "or test_files, pytest_arguments"),
    ],
)
def test_both_ways_no_way_or_half_a_way_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        SweEnvironment(**fields)
