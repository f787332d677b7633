"""Grades a patch in a fresh sandbox: apply it, restore the tests with canaries in them, run them.

Trusts nothing of the agent's sandbox. What is wrong with the patch is a report; what is wrong with
the instance or the sandbox is raised, so that no policy is trained on it.
"""

import json
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from secrets import token_hex

from prorl_service.agents.swe_data import SweData
from prorl_service.agents.swe_log_run import run_test_command, tests_to_copy
from prorl_service.agents.swe_repository import (
    MAX_PATCH_BYTES,
    activated,
    apply_patch,
    apply_text,
    prepare,
)
from prorl_service.errors import EvaluatorError
from prorl_service.rewards import swe_recorder
from prorl_service.rewards.swe import Expected, SweOutcome, SweReport, TestRun, grade
from prorl_service.rewards.swe_canary import with_canary
from prorl_service.rewards.swe_patch import patched_files, signals
from prorl_service.sandbox.base import Sandbox

RECORDER = Path(swe_recorder.__file__).read_bytes()


async def grade_patch(
    sandbox: Sandbox, data: SweData, patch: bytes, *, base: str | None = None
) -> SweReport:
    """`sandbox` is fresh. `base`: the tree that the patch was made against, to be the same here.

    Raises `TaskError`, `EvaluatorError` and `SandboxError`.
    """
    expected = data.expected()
    if (report := unapplied(expected, patch)) is not None:
        return report
    tree = await prepare(sandbox, data.environment)
    if base not in (None, tree):
        raise EvaluatorError("the base of the patch is not what it is graded on")
    tests = {*patched_files(data.test_patch), *data.environment.test_files}
    applied = await apply_patch(sandbox, data, patch, tests)
    known = {"patch_bytes": len(patch), "signals": signals(patch)}
    if applied is None:
        return expected.report(SweOutcome.PATCH_FAILED, **known)
    known["dropped"] = [change.path for change in applied[1]]
    if not applied[0]:
        return expected.report(SweOutcome.EMPTY_PATCH, **known)
    if data.test_patch and not await apply_text(
        sandbox, data.environment, data.test_patch.encode()
    ):
        raise EvaluatorError("the data set's test patch does not apply to the base")
    by_log = bool(data.environment.test_command)
    copied = await tests_to_copy(sandbox, data) if by_log else data.FAIL_TO_PASS
    expected = replace(expected, canaries=await _put_canaries(sandbox, data, copied))
    run = run_test_command if by_log else _run_tests
    return (await run(sandbox, data, expected)).model_copy(update=known)


def unapplied(expected: Expected, patch: bytes | None) -> SweReport | None:
    """Of a patch that needs no sandbox to be graded."""
    if patch is None or len(patch) > MAX_PATCH_BYTES:
        problem = f"the patch is larger than {MAX_PATCH_BYTES} bytes"
        return expected.report(SweOutcome.PATCH_FAILED, problems=[problem])
    return None if patch.strip() else expected.report(SweOutcome.EMPTY_PATCH)


async def _put_canaries(sandbox: Sandbox, data: SweData, tests: Sequence[str]) -> list[str]:
    """One in each file that has such tests; `file::function` of each."""
    chance = random.SystemRandom()
    canaries = []
    for file in sorted({id_.partition("::")[0] for id_ in tests}):
        path = f"{data.environment.repository}/{file}"
        test_id = chance.choice([id_ for id_ in tests if id_.startswith(f"{file}::")])
        try:
            source = (await sandbox.download(path)).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise EvaluatorError(f"{file} has no tests to be fixed: {error}") from error
        changed, name = with_canary(source, test_id, chance)
        await sandbox.upload(path, changed.encode())
        canaries.append(f"{file}::{name}")
    return canaries


async def _run_tests(sandbox: Sandbox, data: SweData, expected: Expected) -> SweReport:
    environment = data.environment
    directory, nonce = f"/tmp/{token_hex(8)}", token_hex(16)
    config = {
        "results": f"{directory}/{token_hex(8)}",
        "nonce": nonce,
        "import_paths": [f"{environment.repository}/{path}" for path in environment.import_paths],
        "arguments": _arguments(data),
        "installed_plugins": environment.installed_plugins,
    }
    await sandbox.upload(f"{directory}/run.py", RECORDER)
    await sandbox.upload(f"{directory}/config", json.dumps(config).encode())
    run = f"{environment.python} {directory}/run.py {directory}/config < /dev/null"
    started = time.monotonic()
    command = {"command": activated(environment, run)}
    done = await sandbox.call_tool("bash", command, timeout_s=environment.test_timeout_s)
    report = grade(
        TestRun(
            nonce=nonce,
            records=await _records(sandbox, str(config["results"])),
            exit_code=done.data["exit_code"],
            timed_out=bool(done.data["timed_out"]),
        ),
        expected,
    )
    return report.model_copy(update={"log": done.output, "test_s": time.monotonic() - started})


def _arguments(data: SweData) -> Sequence[str]:
    environment = data.environment
    plugins = [item for name in environment.pytest_plugins for item in ("-p", name)]
    ours = [f"--rootdir={environment.repository}", "-p", "no:cacheprovider", "--maxfail=0"]
    shown = ["-rA", "--tb=short"]
    return [*ours, *shown, *plugins, *environment.pytest_arguments, *environment.test_files]


async def _records(sandbox: Sandbox, path: str) -> bytes:
    try:
        return await sandbox.download(path)
    except OSError:  # it never began, or was removed
        return b""
