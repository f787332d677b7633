"""Report on a patch, as Markdown for people: the outcome first, the end of the log last.

`python -m recipes.swebench.report ROLLOUTS.jsonl` shows a service's rollouts, one per line. Grades
nothing.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from prorl_service.cli.program import run
from prorl_service.rewards.swe.grade import SweOutcome, SweReport
from prorl_service.schemas import Rollout

MEANING = {
    SweOutcome.RESOLVED: "All tests to be fixed pass, and none was broken.",
    SweOutcome.UNRESOLVED: "The tests ran to their end, and not all are as they should be.",
    SweOutcome.EMPTY_PATCH: "Nothing that counts was changed. The tests were not run.",
    SweOutcome.PATCH_FAILED: "The patch does not apply to the base. The tests were not run.",
    SweOutcome.TAMPERED: "The results cannot be those of an honest run.",
    SweOutcome.TIMEOUT: "The tests did not end in time.",
    SweOutcome.CRASHED: "The tests ended before they reported their results.",
}


def render(report: SweReport) -> str:
    """Returns Markdown. Text of the patch and of the tests is quoted, so as not to pass for
    ours."""
    to_fix, to_keep = _not_as_wanted(report)
    parts = [
        f"# {report.instance_id}: {report.outcome}",
        MEANING[report.outcome],
        _counts(report),
        _section("Tests to be fixed that do not pass", to_fix),
        _section("Tests that were broken", to_keep),
        _section("What an honest run does not leave", report.problems),
        _section("Changed files that were put back", report.dropped),
        _section("Added lines to look at", report.signals),
        f"## End of the log\n\n{_quoted(report.log)}" if report.log else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _counts(report: SweReport) -> str:
    return "\n".join(
        [
            "| | pass | of |",
            "| --- | --- | --- |",
            f"| tests to be fixed | {report.fail_to_pass} | {report.fail_to_pass_total} |",
            f"| tests to be kept | {report.pass_to_pass} | {report.pass_to_pass_total} |",
            "",
            f"Patch: {report.patch_bytes} bytes. Tests: {report.test_s:.1f} s.",
        ]
    )


def _not_as_wanted(report: SweReport) -> tuple[list[str], list[str]]:
    """Splits the tests that are not as wanted: a report has those of `FAIL_TO_PASS` first. Tests
    that were not run are left out."""
    if report.outcome in (SweOutcome.EMPTY_PATCH, SweOutcome.PATCH_FAILED):
        return [], []
    lines = [f"{status}: {id_}" for id_, status in report.statuses.items()]
    wanting = report.fail_to_pass_total - report.fail_to_pass
    broken = report.pass_to_pass_total - report.pass_to_pass
    to_keep = lines[wanting:]
    left_out = broken - len(to_keep)
    return lines[:wanting], [*to_keep, *([f"and {left_out} more"] if left_out > 0 else [])]


def _section(title: str, lines: Sequence[str]) -> str:
    return f"## {title}\n\n{_quoted(chr(10).join(lines))}" if lines else ""


def _quoted(text: str) -> str:
    """Quotes text in a fence longer than any in it, without terminals' control characters."""
    plain = re.sub(r"[^\t\n\x20-\x7e\xa0-\U0010ffff]", "", text).strip("\n")
    longest = max(map(len, re.findall("`+", plain)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{plain}\n{fence}"


def of_rollout(rollout: Rollout) -> str:
    """Returns the rollout's report, or why there is none."""
    if rollout.report is not None:
        return render(SweReport.model_validate(rollout.report))
    reason = rollout.error.message if rollout.error else "it has not ended"
    return f"# {rollout.task_id}: {rollout.state}\n\nNot graded: {reason}\n"


def write_reports(rollouts: Iterable[Rollout], directory: Path) -> None:
    """Writes one file each, named after the rollout."""
    directory.mkdir(parents=True, exist_ok=True)
    for rollout in rollouts:
        (directory / f"{rollout.rollout_id}.md").write_text(of_rollout(rollout))


def main(
    rollouts: Annotated[Path, Parameter(help="JSON, one rollout per line.")],
    output: Annotated[Path | None, Parameter(help="Directory; default: show all.")] = None,
) -> None:
    """Show the reports of rollouts, or write one file each."""
    lines = rollouts.read_text().splitlines()
    read = [Rollout.model_validate_json(line) for line in lines if line]
    if output is None:
        print("\n".join(map(of_rollout, read)))
    else:
        write_reports(read, output)
        print(f"{len(read)} reports in {output}")


if __name__ == "__main__":
    run(main)
