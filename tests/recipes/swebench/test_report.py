from pathlib import Path

import pytest

from prorl_service.agents.base import MAX_REPORT_BYTES, Verdict
from prorl_service.errors import EvaluatorError
from prorl_service.rewards.swe.grade import SweOutcome, SweReport
from prorl_service.schemas import Blame, ErrorInfo, Rollout, RolloutState
from recipes.swebench import report as reports
from recipes.swebench.report import render
from tests import builders

UNRESOLVED = SweReport(
    instance_id="i",
    outcome=SweOutcome.UNRESOLVED,
    fail_to_pass=1,
    fail_to_pass_total=2,
    pass_to_pass=7,
    pass_to_pass_total=8,
    statuses={"t.py::fix": "failed", "t.py::keep": "skipped"},
    problems=["the exit code is 0"],
    dropped=["conftest.py"],
    signals=["+import pytest"],
    log="one\n```\n# resolved\n\x1b[31mred",
)


def test_the_outcome_is_first_and_the_log_is_last() -> None:
    text = render(UNRESOLVED)
    assert text.splitlines()[0] == "# i: unresolved"
    assert (
        text.index("failed: t.py::fix") < text.index("broken") < text.index("skipped: t.py::keep")
    )
    for told in ("fixed | 1 | 2", "kept | 7 | 8", "code is 0", "conftest.py", "+import pytest"):
        assert told in text
    assert text.endswith("````text\none\n```\n# resolved\n[31mred\n````\n")


def test_a_log_cannot_forge_headings() -> None:
    outside = "".join(part for part in render(UNRESOLVED).split("````")[::2])
    assert [line for line in outside.splitlines() if line.startswith("# ")] == ["# i: unresolved"]


def test_a_report_lists_no_tests_if_the_patch_did_not_run() -> None:
    empty = SweReport(
        instance_id="i",
        outcome=SweOutcome.EMPTY_PATCH,
        fail_to_pass_total=1,
        pass_to_pass_total=1,
    )
    assert "##" not in render(empty)


def worst() -> SweReport:
    return SweReport(
        instance_id="i",
        outcome=SweOutcome.CRASHED,
        fail_to_pass_total=1,
        pass_to_pass_total=20_000,
        statuses={f"tests/test_{n}.py::test": "missing" for n in range(20_000)},
        problems=["problem"] * 1000,
        dropped=[f"tests/\udcff{n}" + "\x01" * 4000 for n in range(10_000)],
        signals=["+" + "\x01" * 1000] * 20,
        log="\x01" * 100_000 + "the end",
    )


def test_the_largest_report_can_be_sent_and_says_what_it_leaves_out() -> None:
    told = worst().cut().model_dump(mode="json")
    Verdict(0.0, report=told)
    text = render(SweReport.model_validate(told))
    assert "and 19801 more" in text
    assert "the end" in text


@pytest.mark.parametrize(
    "told", [{"log": "x" * MAX_REPORT_BYTES}, {"x": "\udcff"}, {"x": float("nan")}, {"x": object()}]
)
def test_an_agent_cannot_send_an_oversized_or_non_json_report(told: dict[str, object]) -> None:
    with pytest.raises(EvaluatorError, match="report"):
        Verdict(0.0, report=told)  # type: ignore[arg-type]


def rollout(index: int, state: RolloutState, report: SweReport | None = None) -> Rollout:
    failed = ErrorInfo(kind="SandboxError", blame=Blame.SANDBOX, message="it died")
    return builders.rollout(
        f"g.{index}",
        state=state,
        report=report.model_dump(mode="json") if report else None,
        error=failed if state is RolloutState.FAILED else None,
    )


def test_reports_of_saved_rollouts_go_to_files_or_stdout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "rollouts.jsonl"
    done = rollout(0, RolloutState.DONE, UNRESOLVED)
    failed = rollout(1, RolloutState.FAILED)
    saved.write_text(f"{done.model_dump_json()}\n{failed.model_dump_json()}\n")
    reports.main(saved, output=tmp_path / "reports")
    assert (tmp_path / "reports" / "g.0.md").read_text() == render(UNRESOLVED)
    assert "it died" in (tmp_path / "reports" / "g.1.md").read_text()
    capsys.readouterr()
    reports.main(saved, output=None)
    assert capsys.readouterr().out.startswith("# i: unresolved")
