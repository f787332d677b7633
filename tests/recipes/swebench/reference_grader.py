"""A second verdict on a patch, by SWE-bench's own method, to be compared with ours.

The patch is applied whole, an evaluation script runs the tests in a fresh sandbox, and the package
swebench reads and grades what they print between two markers. Our way of running tests and reading
results is not used. This grader trusts the log, and files that the patch leaves next to the tests:
where the two disagree, ours should be the stricter one. Not for rewards.
"""

import importlib
import importlib.util
import os
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prorl_service.agents.swe.repository import GIT, in_repository, prepare
from prorl_service.rewards.swe.grade import SweReport
from prorl_service.rewards.swe.log_reader import swebench_module
from prorl_service.rewards.swe.patch import patched_files
from prorl_service.sandbox.base import Sandbox, SandboxProvider
from recipes.swebench.grading import graded, sandbox_of
from recipes.swebench.patches import NOTHING, NOTHING_PATCH, Checkout
from recipes.swebench.rows import SweInstance
from tests.recipes.swebench.cheats import OFFLINE

LOG_PARSER = "parse_log_pytest"
"""Parser that cuts ids at blanks; `parse_log_pytest_v2` takes an XFAIL's reason for part of its
id."""

# As swebench.harness.run_evaluation does, which cannot be imported without Docker.
APPLY = (
    f"{GIT} apply",
    f"{GIT} apply --3way",
    f"{GIT} apply --reject",
    "patch --batch --forward --fuzz=5 -p1 -i",
)
CLEAN = f"{GIT} checkout -q -- . ; {GIT} clean -q -fd"


@dataclass(frozen=True, slots=True)
class SecondVerdict:
    """`failed`: tests of the lists that are not as they should be."""

    resolved: bool
    applied: bool = True
    failed: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both verdicts on one patch; `patch` is its name."""

    instance_id: str
    patch: str
    ours: SweReport
    second: SecondVerdict

    @property
    def agree(self) -> bool:
        return self.ours.resolved == self.second.resolved

    @property
    def reason(self) -> str:
        """Reason why ours is not resolved."""
        if self.ours.dropped:
            return f"{', '.join(map(os.path.basename, self.ours.dropped))} put back"
        said = [problem.partition(":")[0] for problem in self.ours.problems]
        return said[0] if said else f"{len(self.ours.statuses)} tests are not as they should be"


async def compare(
    row: SweInstance, name: str, patch: str, sandboxes: SandboxProvider
) -> Comparison:
    """Raises what `grade_patch` raises."""
    ours = await graded(row, patch, sandboxes)
    return Comparison(row.instance_id, name, ours, await second_verdict(row, patch, sandboxes))


def patches(row: SweInstance, cheats: bool = False) -> dict[str, str]:
    """Returns, by name, the reference, a patch that fixes nothing and a partial one; then
    cheats."""
    with tempfile.TemporaryDirectory() as directory:
        checkout = Checkout(row, Path(directory))
        named = {
            "reference": row.patch,
            "nothing": NOTHING_PATCH,
            "partial": checkout.partial(),
        }
        if cheats:
            tried = {name: {**cheat(row), **NOTHING} for name, cheat in OFFLINE.items()}
            named |= {name: checkout.patch(files) for name, files in tried.items()}
        return named


async def second_verdict(row: SweInstance, patch: str, sandboxes: SandboxProvider) -> SecondVerdict:
    """Raises `TaskError`, `SandboxError`."""
    async with sandbox_of(row, sandboxes) as sandbox:
        await prepare(sandbox, row.environment)
        if not await _applied(sandbox, row, patch):
            return SecondVerdict(resolved=False, applied=False)
        log = await _log(sandbox, row)
    return _graded_log(row, patch, log)


async def _applied(sandbox: Sandbox, row: SweInstance, patch: str) -> bool:
    await sandbox.upload("/tmp/patch.diff", patch.encode())
    for command in APPLY:
        script = f"{CLEAN}\n{command} /tmp/patch.diff"
        if not (await in_repository(sandbox, row.environment, script)).is_error:
            return True
    return False


async def _log(sandbox: Sandbox, row: SweInstance) -> str:
    """Returns what the script prints, to its end or to the time limit."""
    await sandbox.upload("/tmp/eval.sh", _script(row).encode())
    command = {"command": "bash /tmp/eval.sh > /tmp/eval.log 2>&1 < /dev/null"}
    timeout_s = row.environment.test_timeout_s
    done = await sandbox.call_tool("bash", command, timeout_s=timeout_s)
    log = (await sandbox.download("/tmp/eval.log")).decode(errors="replace")
    return log + (_swebench().TESTS_TIMEOUT if done.data["timed_out"] else "")


def _script(row: SweInstance) -> str:
    """Writes a script as data sets have it, with the exit code after the end, as in swebench."""
    names, environment = _swebench(), row.environment
    changed = shlex.join(patched_files(row.test_patch))
    reset = f"{GIT} ls-tree -z --name-only HEAD -- {changed} | xargs -0r {GIT} checkout HEAD --"
    options = [*environment.pytest_arguments, *environment.test_files]
    lines = [
        "set -uxo pipefail",
        environment.activate,
        f"cd {environment.repository}",
        reset,
        f"{GIT} apply -v - <<'EOF_OF_TEST_PATCH'\n{row.test_patch}\nEOF_OF_TEST_PATCH",
        f": '{names.START_TEST_OUTPUT}'",
        f"python -m pytest -rA {shlex.join(options)}",
        "exit_code=$?",
        f": '{names.END_TEST_OUTPUT}'",
        f'echo "{names.TEST_EXIT_CODE}: $exit_code"',
        reset,
    ]
    return "\n".join(lines) + "\n"


def _graded_log(row: SweInstance, patch: str, log: str) -> SecondVerdict:
    spec = importlib.import_module("swebench.types").TestSpec(
        instance_id=row.instance_id,
        image="",
        eval_script_list=[],
        repo=row.repo,
        version=row.version,
        FAIL_TO_PASS=row.FAIL_TO_PASS,
        PASS_TO_PASS=row.PASS_TO_PASS,
        log_parser=LOG_PARSER,
        eval_type="pass_and_fail",
    )
    prediction = {"instance_id": row.instance_id, "model_patch": patch}
    with tempfile.NamedTemporaryFile("w", suffix=".log") as file:
        file.write(log)
        file.flush()
        told = _swebench().get_eval_report(spec, prediction, file.name, True)[row.instance_id]
    lists = told.get("tests_status", {}).values()
    failed = [id_ for tests in lists for id_ in tests["failure"]]
    return SecondVerdict(told["resolved"], failed=failed)


def _swebench() -> Any:
    """Imports the package's grading, which needs unidiff. Raises `ValueError` with what to do."""
    return swebench_module("swebench.harness.grading", without=["swebench.harness"])
