"""Grading of a test command by its log, and by what `guest_unittest_plugin` saw. Pure.

For runners without a recorder. Code under test can write anything to its log; what the plugin saw
can only make a status worse. docs/swe.md names the remaining risks.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, ValidationError

from prorl_service.errors import InvalidRequest
from prorl_service.rewards.swe.grade import Expected, Results, SweReport, verdict
from prorl_service.rewards.swe.log_reader import load_parser

OF_UNITTEST = re.compile(r"\w+ \([\w.]+\)")
"""Ids that `guest_unittest_plugin` must have seen too."""


@dataclass(frozen=True, slots=True)
class LogRun:
    """Output of a test command. `exit_code` is None after a timeout."""

    statuses: Mapping[str, str]
    """Status by test, which `log_reader` read from the log."""
    watched: bytes
    exit_code: int | None
    timed_out: bool = False
    problems: Sequence[str] = ()
    """Reasons why there are no statuses."""


class _Watched(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    names: list[str]
    raised: bool


def check_parser(name: str) -> None:
    """Raises `InvalidRequest` for a parser that does not exist."""
    try:
        load_parser(name)
    except ValueError as error:
        raise InvalidRequest.of_field("environment.log_parser", str(error)) from None


def grade_log(run: LogRun, expected: Expected) -> SweReport:
    """Never raises for anything the tests may have written."""
    watched = _read(run.watched)
    statuses = _sceptical(run.statuses, watched)
    wanted = (*expected.fail_to_pass, *expected.pass_to_pass)
    calm = {name: status for name, status in watched.items() if status == "passed"}
    canaries = [
        *_of_canaries(expected.canaries, run.statuses),
        *_of_canaries(expected.canaries, calm),
    ]
    results = Results(
        statuses={id_: _status(id_, statuses) for id_ in wanted}
        | {f"{canary}[{number}]": status for number, (canary, status) in enumerate(canaries)},
        problems=list(run.problems),
        ended=bool(run.statuses),
    )
    return verdict(results, expected, exit_code=run.exit_code, timed_out=run.timed_out)


def _read(records: bytes) -> dict[str, str]:
    """Returns the status by name: `failed` if the test has ever raised."""
    found: dict[str, str] = defaultdict(lambda: "passed")
    for line in records.splitlines():
        try:
            test = _Watched.model_validate_json(line)
        except ValidationError:
            continue
        for name in test.names:
            found[name] = "failed" if test.raised else found[name]
    return found


def _sceptical(statuses: Mapping[str, str], watched: Mapping[str, str]) -> dict[str, str]:
    """Doubts passed tests that raised, or were not seen although they should have been."""

    def status(test: str) -> str:
        if statuses[test] != "passed":
            return statuses[test]
        return watched.get(test, "unseen" if OF_UNITTEST.fullmatch(test) else "passed")

    return {test: status(test) for test in statuses}


def _status(id_: str, statuses: Mapping[str, str]) -> str:
    """Accepts ids of published data sets that end within parameters, where a blank was."""
    if id_ in statuses or id_.count("[") <= id_.count("]"):
        return statuses.get(id_, "missing")
    found = {status for test, status in statuses.items() if test.startswith(id_)}
    return "passed" if found == {"passed"} else min(found - {"passed"}, default="missing")


def _of_canaries(canaries: Collection[str], statuses: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns canary and status of all tests that have its name, in any form. An error is a
    failure: runners report one when a test raises anything other than a failed assertion."""
    names = {canary.rpartition("::")[2]: canary for canary in canaries}
    return [
        (canary, "failed" if status == "error" else status)
        for name, canary in names.items()
        for test, status in statuses.items()
        if name in test and name in re.split(r"\W+", test)
    ]
