"""Grading of a patch in a fresh sandbox: apply it, restore the tests with canaries, run them.

Nothing from the agent's sandbox is trusted. Faults of the patch are reported; faults of the
instance or the sandbox are raised, so that no policy is trained on them.
"""

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from secrets import token_hex

from prorl_service.agents.swe.data import SweData
from prorl_service.agents.swe.log_run import run_test_command, tests_to_copy
from prorl_service.agents.swe.repository import (
    activated,
    apply_patch,
    apply_text,
    fits_the_base,
    prepare,
)
from prorl_service.errors import EvaluatorError
from prorl_service.rewards.swe import guest_pytest_plugin
from prorl_service.rewards.swe.canary import with_canaries
from prorl_service.rewards.swe.grade import Expected, SweOutcome, SweReport, TestRun, grade
from prorl_service.rewards.swe.patch import excess, patched_files, signals
from prorl_service.sandbox.base import Sandbox

RECORDER = Path(guest_pytest_plugin.__file__).read_bytes()


async def grade_patch(
    sandbox: Sandbox, data: SweData, patch: bytes, *, base: str | None = None
) -> SweReport:
    """Grades `patch` in a fresh `sandbox`. `base`: the patch's tree, to be the same here.

    Raises `TaskError`, `EvaluatorError` and `SandboxError`.
    """
    expected = data.expected()
    if (report := unapplied(expected, patch)) is not None:
        return report
    tree = await prepare(sandbox, data.environment)
    if base not in (None, tree):
        raise EvaluatorError("the patch was made against another tree than it is graded on")
    tests = {*patched_files(data.test_patch), *data.environment.test_files}
    applied = await apply_patch(sandbox, data, patch, tests)
    known = {"patch_bytes": len(patch), "signals": signals(patch)}
    if applied is None:
        return expected.report(SweOutcome.PATCH_FAILED, **known)
    known["dropped"] = [change.path for change in applied[1]]
    if not applied[0]:
        return expected.report(SweOutcome.EMPTY_PATCH, **known)
    if not await _restore_tests(sandbox, data):
        problem = "the data set's test patch does not apply on top of it"
        return expected.report(SweOutcome.PATCH_FAILED, problems=[problem], **known)
    by_log = bool(data.environment.test_command)
    copied = await tests_to_copy(sandbox, data) if by_log else data.FAIL_TO_PASS
    try:
        canaries = await _put_canaries(sandbox, data, copied)
    except EvaluatorError as error:
        files = {test.partition("::")[0] for test in copied}
        if files.isdisjoint(change.path for change in applied[0]):
            raise
        return expected.report(SweOutcome.PATCH_FAILED, problems=[error.message], **known)
    expected = replace(expected, canaries=canaries)
    run = run_test_command if by_log else _run_tests
    return (await run(sandbox, data, expected)).model_copy(update=known)


def unapplied(expected: Expected, patch: bytes | None) -> SweReport | None:
    """Returns the report on a patch that is graded without a sandbox, or None. A `patch` of None
    was too large to download."""
    problem = excess(patch) if patch is not None else "the patch is too large to download"
    if problem or patch is None:
        return expected.report(SweOutcome.PATCH_FAILED, problems=[problem])
    return None if patch.strip() else expected.report(SweOutcome.EMPTY_PATCH)


async def _restore_tests(sandbox: Sandbox, data: SweData) -> bool:
    """Returns False if the patch under test is in the way; if the base is, raises
    `EvaluatorError`."""
    test_patch = data.test_patch.encode()
    if not test_patch or await apply_text(sandbox, data.environment, test_patch):
        return True
    if not await fits_the_base(sandbox, data.environment, test_patch):
        raise EvaluatorError("the data set's test patch does not apply to the base")
    return False


async def _put_canaries(sandbox: Sandbox, data: SweData, tests: Sequence[str]) -> list[str]:
    """Puts several into each file that has such tests; returns `file::function` of each."""
    chance = random.SystemRandom()
    canaries = []
    for file in sorted({id_.partition("::")[0] for id_ in tests}):
        path = f"{data.environment.repository}/{file}"
        test_ids = [id_ for id_ in tests if id_.startswith(f"{file}::")]
        try:
            source = (await sandbox.download(path)).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise EvaluatorError(f"{file} cannot be read for its tests: {error}") from error
        changed, names = with_canaries(source, test_ids, chance)
        await sandbox.upload(path, changed.encode())
        canaries += [f"{file}::{name}" for name in names]
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
    run_of_tests = TestRun(
        nonce=nonce,
        records=await _records(sandbox, str(config["results"])),
        exit_code=done.data["exit_code"],
        timed_out=bool(done.data["timed_out"]),
    )
    report = await asyncio.to_thread(grade, run_of_tests, expected)
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
    except OSError:  # the run did not start, or removed it
        return b""
