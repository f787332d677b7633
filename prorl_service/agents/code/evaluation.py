"""Evaluation of programs: hidden test cases run in a fresh sandbox, outputs are compared here.

Cases run one at a time: the sandbox never sees expected outputs or inputs of later cases. Faults of
the program are reported, faults of the sandbox are raised.
"""

import math
from pathlib import Path

from prorl_service.agents.code.data import CodeData
from prorl_service.rewards.code import guest_runner, guest_supervisor
from prorl_service.rewards.code.grade import Case, CaseOutcome, CaseRun, CodeReport, case_outcome
from prorl_service.sandbox.base import Sandbox

SOLUTION = "/workspace/solution.py"

WALL_PER_CPU = 4.0
"""Wall-clock seconds per second of CPU time, as a program may have to wait on a busy host."""

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
    """Grades `solution` in a fresh `sandbox`. Time limits are multiplied by `time_scale`; `total_s`
    caps the CPU time of all cases together. Raises `SandboxError`."""
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
