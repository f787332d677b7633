"""Grading of a patch in two fresh sandboxes: apply it, restore the tests, change some, run them.

Nothing from the agent's sandbox is trusted, and the second run finds nothing that the first has
left. Faults of the patch are reported; faults of the instance or the sandbox are raised, so that no
policy is trained on them.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from random import Random, SystemRandom
from typing import Any

from prorl_service.agents.swe import log_run, pytest_run
from prorl_service.agents.swe.data import SweData
from prorl_service.agents.swe.repository import (
    apply_patch,
    apply_text,
    commit,
    fits_the_base,
    prepare,
)
from prorl_service.errors import EvaluatorError
from prorl_service.rewards.swe.canary import Version, versions
from prorl_service.rewards.swe.grade import Expected, Results, SweOutcome, SweReport, verdict
from prorl_service.rewards.swe.patch import excess, patched_files, signals
from prorl_service.sandbox.base import Sandbox

OpenSandbox = Callable[[], AbstractAsyncContextManager[Sandbox]]


async def grade_patch(
    open_sandbox: OpenSandbox, data: SweData, patch: bytes, *, base: str | None = None
) -> SweReport:
    """Grades `patch` in two sandboxes, one after the other. `base`: the patch's tree, to be the
    same here.

    Raises `TaskError`, `EvaluatorError` and `SandboxError`.
    """
    expected = data.expected()
    if (report := unapplied(expected, patch)) is not None:
        return report
    chance = SystemRandom()
    grading = _Grading(data, patch, base, chance)
    try:
        for number in chance.sample([0, 1], 2):
            async with open_sandbox() as sandbox:
                await grading.run(sandbox, number)
            if grading.results[number].timed_out:
                break
    except _NotRun as error:
        return error.report
    whole, changed = grading.results
    return verdict(whole, changed, expected).model_copy(update=grading.known)


def unapplied(expected: Expected, patch: bytes | None) -> SweReport | None:
    """Returns the report on a patch that is graded without a sandbox, or None. A `patch` of None
    was too large to download."""
    problem = excess(patch) if patch is not None else "the patch is too large to download"
    if problem or patch is None:
        return expected.report(SweOutcome.PATCH_FAILED, problems=[problem])
    return None if patch.strip() else expected.report(SweOutcome.EMPTY_PATCH)


class _NotRun(Exception):
    """A patch is not worth a run of the tests, as `report` says."""

    def __init__(self, report: SweReport) -> None:
        self.report = report


@dataclass(slots=True)
class _Grading:
    """Both runs of one patch."""

    data: SweData
    patch: bytes
    base: str | None
    chance: Random
    known: dict[str, Any] = field(default_factory=dict)
    """Fields of the report that the tests do not decide."""
    versions: tuple[Version, Version] | None = None
    """The tests of both runs, drawn in the first sandbox."""
    results: list[Results] = field(default_factory=lambda: [Results(None), Results(None)])

    async def run(self, sandbox: Sandbox, number: int) -> None:
        """Runs one version of the tests in a fresh sandbox. Raises `_NotRun`."""
        paths = await self._apply(sandbox)
        if self.versions is None:
            self.versions = await self._drawn(sandbox, paths)
        version = self.versions[number]
        for file, text in version.files.items():
            await sandbox.upload(f"{self.data.environment.repository}/{file}", text.encode())
        # git cannot tell which tests were changed.
        if not await commit(sandbox, self.data.environment):
            raise self._not_run(SweOutcome.PATCH_FAILED, "the result cannot be committed")
        left_s = self.data.environment.test_timeout_s - sum(one.test_s for one in self.results)
        run = log_run.run_tests if self.data.environment.test_command else pytest_run.run_tests
        self.results[number] = await run(sandbox, self.data, version, max(left_s, 1.0))

    async def _apply(self, sandbox: Sandbox) -> set[str]:
        """Applies the patch and restores the tests; returns the paths that the patch changes."""
        data = self.data
        tree = await prepare(sandbox, data.environment)
        if self.base not in (None, tree):
            raise EvaluatorError("the patch was made against another tree than it is graded on")
        tests = {*patched_files(data.test_patch), *data.environment.test_files}
        applied = await apply_patch(sandbox, data, self.patch, tests)
        self.known = {"patch_bytes": len(self.patch), "signals": signals(self.patch)}
        if applied is None:
            raise self._not_run(SweOutcome.PATCH_FAILED)
        self.known["dropped"] = [change.path for change in applied[1]]
        if not applied[0]:
            raise self._not_run(SweOutcome.EMPTY_PATCH)
        if not await _restore_tests(sandbox, data):
            problem = "the data set's test patch does not apply on top of it"
            raise self._not_run(SweOutcome.PATCH_FAILED, problem)
        return {change.path for change in applied[0]}

    async def _drawn(self, sandbox: Sandbox, changed: set[str]) -> tuple[Version, Version]:
        by_log = bool(self.data.environment.test_command)
        tests_to_change = log_run.tests_to_change if by_log else pytest_run.tests_to_change
        try:
            tests = await tests_to_change(sandbox, self.data)
        except EvaluatorError as error:
            if changed.isdisjoint(id_.partition("::")[0] for id_ in self.data.FAIL_TO_PASS):
                raise
            raise self._not_run(SweOutcome.PATCH_FAILED, error.message) from error
        # Not in a thread: before Python 3.13, several that make syntax trees disturb each other.
        return versions(tests, self.chance)

    def _not_run(self, outcome: SweOutcome, *problems: str) -> _NotRun:
        return _NotRun(self.data.expected().report(outcome, problems=problems, **self.known))


async def _restore_tests(sandbox: Sandbox, data: SweData) -> bool:
    """Returns False if the patch under test is in the way; if the base is, raises
    `EvaluatorError`."""
    test_patch = data.test_patch.encode()
    if not test_patch or await apply_text(sandbox, data.environment, test_patch):
        return True
    if not await fits_the_base(sandbox, data.environment, test_patch):
        raise EvaluatorError("the data set's test patch does not apply to the base")
    return False
