"""Grades patches without a service: for the admission of instances, tests and measurements."""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from prorl_service.agents.swe.agent import LIMITS
from prorl_service.agents.swe.data import SweData
from prorl_service.agents.swe.evaluation import grade_patch
from prorl_service.errors import EvaluatorError, TaskError
from prorl_service.rewards.swe.grade import SweOutcome, SweReport
from prorl_service.sandbox.base import Sandbox, SandboxProvider
from recipes.swebench.patches import NOTHING_PATCH
from recipes.swebench.rows import SweInstance


async def graded(
    row: SweInstance, patch: str | bytes, sandboxes: SandboxProvider, image: str | None = None
) -> SweReport:
    """Grades in sandboxes of its own. `image`: for providers that need one, if the row has none.

    Raises what `grade_patch` raises.
    """
    data = SweData.model_validate(row.task().data)
    open_sandbox = partial(sandbox_of, row, sandboxes, image)
    return await grade_patch(
        open_sandbox, data, patch.encode() if isinstance(patch, str) else patch
    )


@asynccontextmanager
async def sandbox_of(
    row: SweInstance, sandboxes: SandboxProvider, image: str | None = None
) -> AsyncIterator[Sandbox]:
    """Yields a fresh, started sandbox. Raises `TaskError`, `SandboxError`."""
    sandbox = sandboxes.create(image=row.image or image, limits=LIMITS)
    await sandbox.start()
    try:
        yield sandbox
    finally:
        await sandbox.stop()


@dataclass(frozen=True, slots=True)
class Admission:
    """`row`: the instance as it is to be used; None if it cannot be, for a `reason`.

    `flaky`: tests that passed with the reference patch in only some runs, and are not in `row`.
    """

    row: SweInstance | None
    flaky: tuple[str, ...] = ()
    reason: str = ""


async def admit(
    row: SweInstance, sandboxes: SandboxProvider, *, image: str | None = None, times: int = 3
) -> Admission:
    """Admits an instance if the reference patch resolves it all `times` times, and a patch that
    fixes nothing does not.

    Flaky tests are removed, and the check starts from scratch; expected failures are entered. A
    test that never passes refuses the instance: without the test, it would be another instance.
    Raises `SandboxError`.
    """
    flaky: tuple[str, ...] = ()
    while True:
        try:
            reports = [await graded(row, row.patch, sandboxes, image) for _ in range(times)]
            unfixed = await graded(row, NOTHING_PATCH, sandboxes, image)
        except (TaskError, EvaluatorError) as error:
            return Admission(None, flaky, str(error))
        if reason := _refusal(row, reports, unfixed):
            return Admission(None, flaky, reason)
        found = sometimes(reports)
        changed = _changed(row, reports, found)
        if changed == row:
            return Admission(row, flaky)
        row, flaky = changed, (*flaky, *found)


def sometimes(reports: Sequence[SweReport]) -> tuple[str, ...]:
    """Returns the tests that are as they should be in some of these runs, but not in all."""
    missed = Counter(id_ for report in reports for id_ in report.statuses)
    return tuple(sorted(id_ for id_, times in missed.items() if times < len(reports)))


def _refusal(row: SweInstance, reports: Sequence[SweReport], unfixed: SweReport) -> str:
    """Returns a reason; empty if removing tests can help, or nothing is wrong."""
    for report in reports:
        if report.outcome not in (SweOutcome.RESOLVED, SweOutcome.UNRESOLVED):
            return f"the reference patch: {report.summary}"
    always = set(reports[0].statuses) - set(sometimes(reports))
    if never := always - _expected_failures(row, reports):
        return f"with the reference patch {len(never)} tests never pass: {sorted(never)[:3]}"
    if set(row.FAIL_TO_PASS) <= set(sometimes(reports)):
        return "all tests to be fixed are flaky"
    early = set(row.FAIL_TO_PASS) - set(unfixed.statuses)
    return f"without a fix {len(early)} tests pass: {sorted(early)[:3]}" if early else ""


def _expected_failures(row: SweInstance, reports: Sequence[SweReport]) -> set[str]:
    """Returns the tests that fail as expected in each run and are not entered as such."""
    return {
        id_
        for id_ in row.PASS_TO_PASS
        if all(report.statuses.get(id_) == "xfailed" for report in reports)
    }


def _changed(row: SweInstance, reports: Sequence[SweReport], flaky: Sequence[str]) -> SweInstance:
    lists = {
        "FAIL_TO_PASS": row.FAIL_TO_PASS,
        "PASS_TO_PASS": row.PASS_TO_PASS,
        "expected_xfails": [*row.expected_xfails, *sorted(_expected_failures(row, reports))],
    }
    kept = {name: [id_ for id_ in ids if id_ not in flaky] for name, ids in lists.items()}
    return row.model_copy(update=kept)
