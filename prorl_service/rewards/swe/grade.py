"""Grading of two runs of the tests: from what the recorder in the sandboxes wrote to a verdict.

Pure. Nothing here reads a log (`log` does, where there is no recorder): results come over a channel
of their own, and anything that an honest run does not explain keeps an instance from being
resolved.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from io import BytesIO
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

SOME_TEST_FAILED = 1
"""Exit code of pytest, and of other runners."""

CANARY_PASSED = "canary passed"
FOREIGN = "the results contain what the recorder did not write"

MAX_RECORDS_BYTES = 32 << 20
"""Maximum size of the records, which the service's own process reads: some 50 000 tests."""
MAX_OTHER_RECORDS_BYTES, MAX_TEST_RECORDS_BYTES = 8 << 20, 8 << 10
"""Maximum size of records: of all tests outside the lists together, and of each listed test."""

PHASES = ("setup", "call", "teardown")

MOST_STATUSES, MOST_LINES = 200, 50
MOST_LINE_CHARACTERS, MOST_LOG_CHARACTERS, MOST_PATCH_CHARACTERS = 200, 8192, 1 << 16
"""Limits of a report that is sent."""


class SweOutcome(StrEnum):
    RESOLVED = "resolved"
    UNRESOLVED = "unresolved"
    EMPTY_PATCH = "empty_patch"
    """The patch changes nothing, or only protected files. The tests were not run."""
    PATCH_FAILED = "patch_failed"
    """The patch does not apply to the base, or is too large. The tests were not run."""
    TAMPERED = "tampered"
    """The results look right, but cannot be those of an honest run."""
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    """The test process ended without reporting its end, or its log reports no test."""


class SweReport(BaseModel):
    """Result of one patch. `statuses` has the tests whose status is not the wanted one."""

    model_config = ConfigDict(extra="forbid")

    instance_id: str
    outcome: SweOutcome
    fail_to_pass: int = 0
    fail_to_pass_total: int
    pass_to_pass: int = 0
    pass_to_pass_total: int
    statuses: dict[str, str] = {}
    problems: list[str] = []
    dropped: list[str] = []
    """Changes of protected files, which were not applied."""
    signals: list[str] = []
    """Lines of the patch that a person should look at. They do not change the outcome."""
    patch_bytes: int = 0
    patch: str = ""
    """Text of the patch; empty in a report that is sent if it is large."""
    test_s: float = 0.0
    log: str = ""

    @property
    def resolved(self) -> bool:
        return self.outcome is SweOutcome.RESOLVED

    @property
    def summary(self) -> str:
        """One line for the log."""
        parts = [
            f"{self.instance_id}: {self.outcome}",
            f"fail-to-pass {self.fail_to_pass}/{self.fail_to_pass_total}",
            f"pass-to-pass {self.pass_to_pass}/{self.pass_to_pass_total}",
            *([f"{len(self.dropped)} protected files not applied"] if self.dropped else []),
            *self.problems[:3],
        ]
        return "; ".join(parts)

    def cut(self) -> "SweReport":
        """Returns the report as it is sent: shortened, and valid text for any file name."""
        return self.model_copy(
            update={
                "statuses": dict(list(self.statuses.items())[:MOST_STATUSES]),
                "problems": [_text(one) for one in self.problems[:MOST_LINES]],
                "dropped": [_text(one) for one in self.dropped[:MOST_LINES]],
                "signals": [_text(one) for one in self.signals[:MOST_LINES]],
                "patch": self.patch if len(self.patch) <= MOST_PATCH_CHARACTERS else "",
                "log": self.log[-MOST_LOG_CHARACTERS:],
            }
        )

    def components(self) -> dict[str, float]:
        """Returns the rollout's reward components: shares and flags."""
        applied = self.outcome not in (SweOutcome.EMPTY_PATCH, SweOutcome.PATCH_FAILED)
        return {
            "resolved": float(self.resolved),
            "patch_empty": float(self.outcome is SweOutcome.EMPTY_PATCH),
            "patch_applies": float(applied),
            "fail_to_pass": _share(self.fail_to_pass, self.fail_to_pass_total),
            "pass_to_pass": _share(self.pass_to_pass, self.pass_to_pass_total),
            "tampered": float(self.outcome is SweOutcome.TAMPERED),
            "test_timeout": float(self.outcome is SweOutcome.TIMEOUT),
            "protected_files": float(len(self.dropped)),
            "signals": float(len(self.signals)),
        }


@dataclass(frozen=True, slots=True)
class Expected:
    """Results that a patch must reach. `xfails`: tests whose status must be that of an expected
    failure."""

    instance_id: str
    fail_to_pass: Sequence[str]
    pass_to_pass: Sequence[str]
    xfails: Collection[str] = ()

    @property
    def wanted(self) -> tuple[str, ...]:
        return (*self.fail_to_pass, *self.pass_to_pass)

    def report(self, outcome: SweOutcome, **fields: Any) -> SweReport:
        return SweReport(
            instance_id=self.instance_id,
            outcome=outcome,
            fail_to_pass_total=len(self.fail_to_pass),
            pass_to_pass_total=len(self.pass_to_pass),
            **fields,
        )

    def not_as_wanted(self, ids: Iterable[str], statuses: Mapping[str, str]) -> dict[str, str]:
        """Returns the tests of other than the wanted status: status by id."""
        found = {id_: statuses.get(id_, "missing") for id_ in ids}
        wanted = {id_: "xfailed" if id_ in self.xfails else "passed" for id_ in found}
        return {id_: status for id_, status in found.items() if status != wanted[id_]}


@dataclass(frozen=True, slots=True)
class TestRun:
    """Output of a run of the tests. `exit_code` is None after a timeout."""

    __test__ = False  # for pytest

    nonce: str
    records: bytes
    exit_code: int | None
    timed_out: bool = False


@dataclass(slots=True)
class Results:
    """Findings about a run. `exit_code` is None after a timeout."""

    exit_code: int | None
    timed_out: bool = False
    statuses: dict[str, str] = field(default_factory=dict)
    """Status by id of the tests that were not changed."""
    canaries: dict[str, set[str]] = field(default_factory=dict)
    """Statuses of each changed test, which has several if it is parametrised."""
    problems: list[str] = field(default_factory=list)
    """Traces that an honest run would not leave."""
    ended: bool = False
    log: str = ""
    test_s: float = 0.0


def read_run(run: TestRun, expected: Expected, changed: Collection[str]) -> Results:
    """Returns the findings; `changed`: the tests that must fail, as `file::Class::function`. Never
    raises for anything the tests may have written."""
    results = _read(run, _most_bytes(expected))
    wanted = set(expected.wanted)
    statuses: dict[str, dict[str, str]] = {test: {} for test in changed}
    for id_ in [id_ for id_ in results.statuses if _function(id_) in statuses]:
        statuses[_function(id_)][id_] = results.statuses.pop(id_)
    for test, found in statuses.items():
        listed = {status for id_, status in found.items() if id_ in wanted}
        results.canaries[test] = listed or set(found.values())
    return results


def verdict(whole: Results, changed: Results, expected: Expected) -> SweReport:
    """Returns the report on a patch. A test counts where it was not changed; if it was not changed
    in either run, in `whole`."""
    statuses = changed.statuses | whole.statuses
    f2p = expected.not_as_wanted(expected.fail_to_pass, statuses)
    p2p = expected.not_as_wanted(expected.pass_to_pass, statuses)
    runs = (whole, changed)
    problems = [problem for run in runs for problem in (*run.problems, *_canary_problems(run))]
    if not any(changed.canaries.values()):
        problems.append("there was no canary")
    outcome = _outcome(all(run.ended for run in runs), failed=bool(f2p or p2p), problems=problems)
    return expected.report(
        SweOutcome.TIMEOUT if any(run.timed_out for run in runs) else outcome,
        fail_to_pass=len(expected.fail_to_pass) - len(f2p),
        pass_to_pass=len(expected.pass_to_pass) - len(p2p),
        statuses=f2p | p2p,
        problems=problems,
        test_s=sum(run.test_s for run in runs),
        log=whole.log or changed.log,
    )


def _outcome(ended: bool, *, failed: bool, problems: list[str]) -> SweOutcome:
    if any(problem.startswith((CANARY_PASSED, FOREIGN)) for problem in problems):
        return SweOutcome.TAMPERED
    if not ended:
        return SweOutcome.CRASHED
    if failed:
        return SweOutcome.UNRESOLVED
    return SweOutcome.TAMPERED if problems else SweOutcome.RESOLVED


def _canary_problems(run: Results) -> list[str]:
    """Lists problems. Each changed test must fail, except those that skip themselves before they
    can."""
    problems = []
    for name, found in run.canaries.items():
        if "passed" in found:
            problems.append(f"{CANARY_PASSED}: {name}")
        elif "failed" not in found or found - {"failed", "skipped"}:
            problems.append(f"canary did not fail: {name} {sorted(found)}")
    if run.canaries and run.exit_code != SOME_TEST_FAILED:
        problems.append(f"the exit code is {run.exit_code}, not that of failed canaries")
    elif run.exit_code not in (0, SOME_TEST_FAILED):
        problems.append(f"the exit code is {run.exit_code}, not that of tests that ran")
    return problems


def _function(id_: str) -> str:
    return id_.partition("[")[0]


def _most_bytes(expected: Expected) -> int:
    """Returns a size that the records of an honest run do not reach."""
    records_bytes = len(expected.wanted) * MAX_TEST_RECORDS_BYTES
    return min(MAX_RECORDS_BYTES, MAX_OTHER_RECORDS_BYTES + records_bytes)


def _read(run: TestRun, most_bytes: int) -> Results:
    results = Results(run.exit_code, run.timed_out)
    phases: dict[str, list[_Phase]] = defaultdict(list)
    collected: list[str] = []
    if len(run.records) > most_bytes:
        results.problems.append(f"{FOREIGN}: too many bytes")
        return results
    for line in BytesIO(run.records):
        record = _parsed(line, run.nonce)
        if record is None or results.ended:
            results.problems.append(FOREIGN)
            break
        if isinstance(record, _Phase):
            phases[record.id].append(record)
        elif isinstance(record, _Collected):
            collected += record.ids
        else:
            results.ended = True
            if record.exit_code != run.exit_code:
                results.problems.append(f"the recorder saw exit code {record.exit_code}")
    if sorted(collected) != sorted(phases):
        results.problems.append(f"{len(collected)} tests were collected, {len(phases)} ran")
    results.statuses = {id_: _status(records) for id_, records in phases.items()}
    return results


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    nonce: str


class _Collected(_Record):
    kind: Literal["collected"]
    ids: list[str]


class _Phase(_Record):
    kind: Literal["phase"]
    id: str
    when: str
    outcome: str
    raised: bool
    xfail: bool


class _End(_Record):
    kind: Literal["end"]
    exit_code: int = Field(ge=-255, le=255)


_RECORD: TypeAdapter[_Collected | _Phase | _End] = TypeAdapter(
    Annotated[_Collected | _Phase | _End, Field(discriminator="kind")]
)


def _parsed(line: bytes, nonce: str) -> _Collected | _Phase | _End | None:
    """Returns None for a line that is not a record of this run."""
    try:
        record = _RECORD.validate_json(line)
    except ValidationError:
        return None
    return record if record.nonce == nonce else None


def _status(records: list[_Phase]) -> str:
    """Returns `passed` only for a test whose phases all passed, once each, and raised nothing."""
    for record in records:
        if record.xfail:
            return "xpassed" if record.outcome == "passed" else "xfailed"
        if record.outcome == "skipped":
            return "skipped"
        if record.outcome != "passed" or record.raised:
            return "failed" if record.when == "call" else "error"
    if tuple(record.when for record in records) != PHASES:
        return "incomplete"
    return "passed"


def _text(line: str) -> str:
    return line.encode(errors="replace").decode()[:MOST_LINE_CHARACTERS]


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0
