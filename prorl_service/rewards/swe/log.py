"""Grading of a test command by its log, and by what `guest_unittest_plugin` saw. Pure.

For runners without a recorder. Code under test can write anything to its log; what the plugin saw
can only make a status worse. docs/swe.md names the remaining risks.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, ValidationError

from prorl_service.errors import InvalidRequest
from prorl_service.rewards.swe.canary import OF_UNITTEST, means
from prorl_service.rewards.swe.grade import Expected, Results
from prorl_service.rewards.swe.log_reader import load_parser


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


def read_log_run(run: LogRun, expected: Expected, changed: Mapping[str, str]) -> Results:
    """Returns the findings; `changed`: description by test of those that must fail. Never raises
    for anything the tests may have written."""
    watched = _read(run.watched)
    statuses = _sceptical(run.statuses, watched)
    canaries = {
        test: _of_canary(test, description, run.statuses)
        | (_of_canary(test, description, watched) & {"passed"})
        for test, description in changed.items()
    }
    # A test that no id means may be one that the command does not run.
    meant = {
        test
        for test, description in changed.items()
        if any(means(id_, test, description) for id_ in expected.wanted)
    }
    return Results(
        run.exit_code,
        run.timed_out,
        statuses={
            id_: _status(id_, statuses)
            for id_ in expected.wanted
            if not any(means(id_, test, description) for test, description in changed.items())
        },
        canaries={test: found for test, found in canaries.items() if found or test in meant},
        problems=list(run.problems),
        ended=bool(run.statuses),
    )


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


def _of_canary(test: str, description: str, statuses: Mapping[str, str]) -> set[str]:
    """Returns the statuses of a changed test; if its class is not found, which others may inherit,
    those of its name. An error is a failure: runners report one when a test raises anything other
    than a failed assertion."""
    name = test.rpartition("::")[2]
    found = {status for id_, status in statuses.items() if means(id_, test, description)}
    alike = {status for id_, status in statuses.items() if name in re.split(r"\W+", id_)}
    return {"failed" if status == "error" else status for status in found or alike}
