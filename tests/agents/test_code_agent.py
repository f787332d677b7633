"""The code agent and its grading in real sandboxes: what programs can see and what they earn."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import ValidationError

from prorl_service.agents.code.agent import CodeAgent
from prorl_service.agents.code.data import CodeData
from prorl_service.agents.code.evaluation import RUNNER, SOLUTION, grade_solution
from prorl_service.errors import SandboxError
from prorl_service.rewards.code.grade import CodeReport
from prorl_service.sandbox.base import Sandbox, SandboxLimits, ToolResult
from prorl_service.schemas import FinishReason, Limits, Message, Task
from prorl_service.testing import Reply, call, play
from tests.rewards.hostile import HOSTILE_PROGRAMS, KNOWS, SECRETS, HostileProgram
from tests.sandbox.sandboxes import Kind, new_provider, started

pytestmark = pytest.mark.processes

SUM = "n = int(input())\nprint(sum(map(int, input().split())))\n"
SUMS = {"inputs": ["2\n1 2\n", "1\n5\n", "3\n1 1 1\n"], "outputs": ["3\n", "5\n", "3\n"]}


@asynccontextmanager
async def fresh(kind: Kind = "bubblewrap") -> AsyncIterator[Sandbox]:
    async with new_provider(kind) as provider, started(provider, SandboxLimits()) as sandbox:
        yield sandbox


async def graded(
    source: str,
    tests: dict[str, Any],
    *,
    time_scale: float = 1.0,
    sandbox: Sandbox | None = None,
    **data: Any,
) -> CodeReport:
    if sandbox is None:
        async with fresh() as sandbox:
            return await graded(source, tests, time_scale=time_scale, sandbox=sandbox, **data)
    solution = source.encode(errors="surrogateescape")
    wanted = CodeData(tests=tests, **data)
    return await grade_solution(sandbox, wanted, solution, time_scale=time_scale)


def outcomes(report: CodeReport) -> list[str]:
    return [outcome.value for outcome in report.outcomes]


@pytest.mark.parametrize(
    "source",
    [
        SUM,
        "import sys\nsys.stdin.readline()\nprint(sum(map(int, sys.stdin.read().split())))",
        "print(sum(map(int, open(0).read().split()[1:])))",
        "print(sum(map(int, open('/dev/stdin').read().split()[1:])))",
        "import sys\nsys.stdout.write(str(sum(map(int, sys.stdin.buffer.read().split()[1:]))))",
        f"def main():\n    {SUM.strip().replace(chr(10), chr(10) + '    ')}\n"
        "if __name__ == '__main__':\n    main()",
        f"import atexit\natexit.register(print)\n{SUM}exit()",
        f"# -*- coding: latin-1 -*-\n# \udce9\n{SUM}",
    ],
)
async def test_programs_may_read_and_print_in_any_way(source: str) -> None:
    assert outcomes(await graded(source, SUMS)) == ["passed"] * 3


@pytest.mark.parametrize(
    ("source", "tests"),
    [
        ("def add(a, b): return a + b", {"inputs": [[1, 2], [[1], [2]]], "outputs": [3, [1, 2]]}),
        ("def add(a, b): return a + b", {"inputs": ["1\n2", '"a"\n"b"'], "outputs": ["3", '"ab"']}),
        ("def add(a, b): return a, b", {"inputs": [[1, 2]], "outputs": [[1, 2]]}),
        ("def add(a, b): return a + b", {"inputs": [[1, 2]], "outputs": [[3]]}),
        (
            "class Solution:\n"
            "    def add(self, a, b):\n"
            "        print('noise')\n"
            "        return a + b",
            {"inputs": [[1, 2]], "outputs": [3]},
        ),
    ],
)
async def test_functions_are_called(source: str, tests: dict[str, Any]) -> None:
    report = await graded(source, {"fn_name": "add", **tests})
    assert report.all_passed, report.summary()


async def test_grading_stops_at_the_first_failure_without_partial_credit() -> None:
    source = "print(input().replace('2', '3'))"
    assert outcomes(await graded(source, SUMS)) == ["passed", "wrong"]
    report = await graded(source, SUMS, partial_credit=True)
    assert outcomes(report) == ["passed", "wrong", "passed"]
    assert report.share == pytest.approx(2 / 3)


async def test_a_program_that_does_not_compile_is_tried_once() -> None:
    report = await graded("print(", SUMS, partial_credit=True)
    assert outcomes(report) == ["compile_error"]
    assert report.share == 0.0


BURNS = "import time\nwhile time.process_time() < 0.6: pass\n"


async def test_cpu_time_limits_are_scaled() -> None:
    assert outcomes(await graded(BURNS + SUM, SUMS, time_limit_s=0.4)) == ["timeout"]
    report = await graded(BURNS + SUM, SUMS, time_limit_s=0.4, time_scale=3)
    assert report.all_passed
    assert report.time_scale == 3


async def test_cases_share_a_total_time_limit() -> None:
    report = await graded(BURNS + SUM, SUMS, total_time_limit_s=1.0, partial_credit=True)
    assert outcomes(report) == ["passed", "timeout"]
    assert report.share == pytest.approx(1 / 3)


async def test_memory_is_limited() -> None:
    source = f"x = bytearray(300 << 20)\n{SUM}"
    assert outcomes(await graded(source, SUMS, memory_mb=256)) == ["crashed"]
    assert (await graded(source, SUMS, memory_mb=512)).all_passed


async def test_numbers_may_differ_within_the_tasks_tolerance() -> None:
    tests = {"inputs": ["1 3"], "outputs": ["0.333333333"]}
    source = "a, b = map(int, input().split())\nprint(a / b)"
    assert outcomes(await graded(source, tests)) == ["wrong"]
    assert (await graded(source, tests, tolerance=1e-6)).all_passed


LEAVES_A_CHILD = """
import os, time
print(input(), os.listdir("."))
open("here", "x").close()
if os.fork() == 0:
    os.setsid()
    time.sleep(3600)
"""
UNTIL_ONE_IS_LEFT = """
until [ "$(cat /proc/[0-9]*/comm 2>/dev/null | grep -c '^python3$')" = 1 ]; do sleep 0.05; done
"""


async def test_each_case_starts_from_scratch() -> None:
    tests = {"inputs": list("abc"), "outputs": [f"{letter} []" for letter in "abc"]}
    async with fresh() as sandbox:
        report = await graded(LEAVES_A_CHILD, tests, sandbox=sandbox)
        assert report.all_passed, report.summary()
        # Only the process that forks the cases is left.
        done = await sandbox.call_tool("bash", {"command": UNTIL_ONE_IS_LEFT}, timeout_s=20)
        assert done.data["exit_code"] == 0, done.output


class Watched:
    """A sandbox that records what programs print in it."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.outputs: list[str] = []
        self._sandbox = sandbox

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)

    async def call_tool(self, *args: Any, **kwargs: Any) -> ToolResult:
        done = await self._sandbox.call_tool(*args, **kwargs)
        self.outputs.append(done.output)
        return done


async def test_a_case_cannot_see_outputs_or_other_inputs() -> None:
    looks = next(one for one in HOSTILE_PROGRAMS if one.name == "looks everywhere")
    inputs = ["input-of-the-first\n", "input-of-the-second\n"]
    tests = {"inputs": inputs, "outputs": SECRETS["outputs"]}
    async with fresh() as sandbox:
        watched: Any = Watched(sandbox)
        source = f"print(input())\n{looks.source}"
        await graded(source, tests, sandbox=watched, partial_credit=True)
    assert len(watched.outputs) == 2
    for number, (output, given) in enumerate(zip(watched.outputs, inputs, strict=True)):
        assert output.startswith(given)
        assert "memory_bytes" in output  # it did inspect its runner
        assert inputs[1 - number].strip() not in output
        assert not [secret for secret in SECRETS["outputs"] if secret.strip() in output]


@pytest.mark.parametrize("hostile", HOSTILE_PROGRAMS, ids=lambda hostile: hostile.name)
@pytest.mark.sampled(12)
async def test_hostile_programs_fail_and_harm_nobody(hostile: HostileProgram) -> None:
    report = await graded(hostile.source, hostile.tests, time_limit_s=0.25, partial_credit=True)
    assert report.share == 0.0, report.summary()


async def test_the_tests_of_hostile_programs_can_be_passed() -> None:
    assert (await graded(KNOWS, SECRETS)).all_passed


async def test_programs_do_not_run_without_a_pid_namespace() -> None:
    async with fresh("process") as sandbox:
        await sandbox.add_tool("code_case", RUNNER)
        with pytest.raises(SandboxError, match="PID namespace"):
            await sandbox.call_tool("code_case", {"input": ""}, timeout_s=20)


async def test_grading_works_the_same_in_a_container() -> None:
    left = next(one for one in HOSTILE_PROGRAMS if one.name == "lives on")
    for source, tests, passed in ((SUM, SUMS, 3), (left.source, left.tests, 0)):
        async with fresh("apptainer") as sandbox:
            report = await graded(source, tests, sandbox=sandbox, partial_credit=True)
        assert report.passed == passed, report.summary()


@pytest.mark.parametrize(
    ("tests", "problem"),
    [
        ({"inputs": [], "outputs": []}, "inputs"),
        ({"inputs": ["1"], "outputs": []}, "1 inputs, but 0 outputs"),
        ({"inputs": [[1]], "outputs": ["1"]}, "text or lines of text"),
        ({"inputs": ["1"], "outputs": [1]}, "text or lines of text"),
        ({"fn_name": "f", "inputs": ["1"], "outputs": [1]}, "test 0 cannot be read"),
        ({"fn_name": "f", "inputs": ["x"], "outputs": ["1"]}, "test 0 cannot be read"),
        ({"fn_name": "f()", "inputs": [[]], "outputs": [1]}, "fn_name"),
    ],
)
def test_tests_that_cannot_be_run_are_refused(tests: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        CodeData(tests=tests)


def task(tests: dict[str, Any] = SUMS, **data: Any) -> Task:
    messages = [Message(role="user", content="Add up the numbers of the second line.")]
    return Task(task_id="t", agent="code", messages=messages, data={"tests": tests, **data})


async def test_from_prompt_to_verdict() -> None:
    replies: list[Reply] = [
        call("str_replace_editor", command="create", path=SOLUTION, file_text=SUM),
        call("bash", command=f"python3 {SOLUTION} < example.txt"),
        call("ipython", code="import os; sorted(os.listdir('/workspace'))"),
        call("bash", command="grep -rl '1 1 1' /workspace /tmp /dev/shm /proc/*/environ; env"),
        "Done.",
    ]
    tools = ["bash", "str_replace_editor", "ipython"]
    wanted = task(files={"example.txt": "2\n1 2\n"}, tools=tools)
    played = await play(CodeAgent, wanted, replies, sandboxes="bubblewrap")
    assert played.finish_reason is FinishReason.FINISHED
    assert played.outputs[1:3] == ["3", "['example.txt', 'solution.py']"]
    assert "1 1 1" not in played.outputs[3]
    assert played.reward == 1.0
    components = played.rollout.reward_components
    assert components["cases_passed"] == 3.0
    assert components["time_scale"] >= 1.0
    assert played.rollout.report == {"outcomes": ["passed"] * 3}


@pytest.mark.parametrize(
    ("command", "reward", "has_solution"),
    [
        (f"echo 'print(3)' > {SOLUTION}", 2 / 3, 1.0),
        ("true", 0.0, 0.0),
        (f"mkdir {SOLUTION}", 0.0, 0.0),
        (f"mkfifo {SOLUTION}", 0.0, 0.0),
        (f"ln -s {SOLUTION} {SOLUTION}", 0.0, 0.0),
        (f"ln -s /dev/zero {SOLUTION}", 0.0, 0.0),
        (f"head -c 2000000 /dev/zero > {SOLUTION}", 0.0, 0.0),
    ],
)
async def test_the_solution_is_the_file_left_at_the_end(
    command: str, reward: float, has_solution: float
) -> None:
    played = await play(
        CodeAgent,
        task(partial_credit=True),
        [call("bash", command=command)],
        sandboxes="bubblewrap",
        limits=Limits(max_turns=1),
    )
    assert played.finish_reason is FinishReason.MAX_TURNS
    assert played.reward == pytest.approx(reward)
    assert played.rollout.reward_components["has_solution"] == has_solution


def test_the_prompt_says_what_to_write_where_but_shows_no_test() -> None:
    prints = CodeAgent(task()).prompt()
    assert SOLUTION in prints.messages[0].content
    assert "standard input" in prints.messages[0].content
    assert [tool["function"]["name"] for tool in prints.tools] == ["bash", "str_replace_editor"]
    function = {"fn_name": "total", "inputs": [[[4711]]], "outputs": [4711]}
    calls = CodeAgent(task(function)).prompt()
    assert "`total`" in calls.messages[0].content
    assert not [message for message in calls.messages if "4711" in message.content]
