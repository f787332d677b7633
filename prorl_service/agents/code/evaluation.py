"""Runs a program against its hidden test cases in a fresh sandbox, and compares out here.

A case at a time: the sandbox has neither the outputs nor the inputs of later cases. What a program
does wrong is a report; what is wrong with the sandbox is raised.
"""

import math
from pathlib import Path

from prorl_service.agents.code.data import CodeData
from prorl_service.rewards.code import guest_runner, guest_supervisor
from prorl_service.rewards.code.grade import Case, CaseOutcome, CaseRun, CodeReport, case_outcome
from prorl_service.sandbox.base import Sandbox

SOLUTION = "/workspace/solution.py"

WALL_PER_CPU = 4.0
"""How much longer than its CPU time a program may take: for waiting on a busy host."""

START_TIMEOUT_S = 60.0

RUNNER = Path(guest_runner.__file__).read_text()
HOST = Path(guest_supervisor.__file__).read_text()


async def grade_solution(
    sandbox: Sandbox,
    data: CodeData,
    solution: bytes,
    *,
    time_scale: float = 1.0,
    total_s: float = math.inf,
) -> CodeReport:
    """`sandbox` is fresh. Limits of time are multiplied by `time_scale`; all cases together do not
    get more CPU time than `total_s`. Raises `SandboxError`."""
    await sandbox.upload(SOLUTION, solution)
    await sandbox.add_tool("code_case", RUNNER)
    cases = data.tests.cases
    report = CodeReport(len(cases), time_scale=time_scale)
    left_s = min(data.total_time_limit_s * time_scale, total_s)
    for case in cases:
        limit_s = min(data.time_limit_s * time_scale, left_s)
        run = await _run(sandbox, data, case, limit_s)
        left_s -= max(run.cpu_s, run.wall_s / WALL_PER_CPU)
        outcome = case_outcome(run, case, cpu_limit_s=limit_s, tolerance=data.tolerance)
        report.outcomes.append(outcome)
        hopeless = outcome is CaseOutcome.COMPILE_ERROR or left_s <= 0
        if hopeless or not (data.partial_credit or outcome is CaseOutcome.PASSED):
            break
    return report


async def _run(sandbox: Sandbox, data: CodeData, case: Case, cpu_limit_s: float) -> CaseRun:
    wall_s = cpu_limit_s * WALL_PER_CPU
    call = {
        "input": case.input,
        "max_output_bytes": case.max_output_bytes,
        "cpu_s": int(cpu_limit_s) + 1,
        "wall_s": wall_s,
        "program": HOST,
        "options": {
            "solution": SOLUTION,
            "function": data.tests.fn_name,
            "memory_bytes": data.memory_mb << 20,
        },
    }
    done = await sandbox.call_tool("code_case", call, timeout_s=wall_s + START_TIMEOUT_S)
    return CaseRun(output=done.output, **done.data)
