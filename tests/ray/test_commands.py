"""`prorl ray up` refuses what cannot work before it looks for a cluster."""

from pathlib import Path

import pytest
from cyclopts import CycloptsError

from prorl_service.cli.main import app
from prorl_service.cli.program import report
from prorl_service.errors import ProRLError


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Returns what `prorl ray up` says of options that it refuses."""
    with pytest.raises((CycloptsError, ProRLError)) as refused:
        app.meta(["ray", "up", *arguments], exit_on_error=False, print_error=False)
    assert report(refused.value)
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--", "--run-wrokers", "4"), "--run-wrokers"),
        (("--", "--run-workers", "none"), "--run-workers"),
        (("--", "--port", "8081"), "--port of services and front is set by `prorl ray up`"),
        (("--", "--backend", "http://e:1"), "--backend of services and front is set"),
        (("--run", "../x"), "--run ../x: a run's name is"),
        (("--max-nodes", "4"), "--max-nodes needs --resource"),
        (("--resource", "r", "--min-nodes", "5", "--max-nodes", "4"), "--min-nodes is greater"),
        (("--label", "zone"), "write labels as KEY=VALUE"),
        (("--env", "NO_SUCH_VARIABLE"), "--env NO_SUCH_VARIABLE: this variable is not set"),
        (("--serve-config", "/no/file"), "--serve-config /no/file"),
    ],
)
def test_wrong_options_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert message in refusal(capsys, *arguments)


def test_files_of_options_are_checked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("run-workers: none\n")
    assert "--run-workers" in refusal(capsys, "--serve-config", str(file))
    file.write_text("port: 1\n")
    assert "--port of services and front" in refusal(capsys, "--front-config", str(file))
    file.write_text("- 1\n")
    assert "expected options by name" in refusal(capsys, "--front-config", str(file))
