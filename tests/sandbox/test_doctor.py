"""`prorl doctor` on this host, which can run the sandbox tests, and on hosts that cannot."""

import json
import os
import subprocess
import threading
from pathlib import Path

import pytest

from prorl_service.cli.doctor import HOST, ISOLATING, Check, of_neighbour, run_all
from prorl_service.neighbours import Neighbour, neighbours
from prorl_service.sandbox.host_checks import Finding, Status
from tests.programs import prorl

pytestmark = pytest.mark.processes


def doctor(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    return prorl("doctor", *arguments, env={**os.environ, "PATH": path or os.environ["PATH"]})


def test_a_capable_host_passes_all_checks_of_sandboxes() -> None:
    done = doctor("--json")
    assert done.stderr == ""
    assert done.returncode == 0
    rows = {row["check"]: row for row in json.loads(done.stdout)}
    assert list(rows) == [
        *(f"--sandbox {kind}" for kind in (*ISOLATING, "auto")),
        *(check.name for check in HOST),
        *(one.title for one in neighbours().values() if one.installed()),
    ]
    for name in ("--sandbox auto", "user namespaces", "overlays", "system-call filter"):
        assert rows[name]["status"] == "ok", rows[name]
    assert all(row["found"] and row["purpose"] for row in rows.values())


def test_a_host_without_programs_gets_next_steps(tmp_path: Path) -> None:
    done = doctor("--json", path=str(tmp_path))
    assert done.returncode == 1
    rows = {row["check"]: row for row in json.loads(done.stdout)}
    for name in ("--sandbox bubblewrap", "--sandbox auto", "image files"):
        assert rows[name]["status"] == "missing"
        assert "prorl install sandboxes" in rows[name]["next_step"]


def test_the_table_shows_findings_and_next_steps(tmp_path: Path) -> None:
    done = doctor(path=str(tmp_path))
    assert done.returncode == 1
    assert "missing  --sandbox bubblewrap  bubblewrap is not installed" in done.stdout
    assert "→ run `prorl install sandboxes`" in done.stdout


def test_a_check_that_hangs_or_breaks_becomes_a_finding() -> None:
    fine = Finding(Status.OK, "found")
    hanging = threading.Event()

    def hang() -> Finding:
        hanging.wait()
        return fine

    def break_down() -> Finding:
        raise ValueError("odd /proc")

    found = run_all(
        [Check(run.__name__, "", run) for run in (hang, break_down, lambda: fine)], budget_s=0.2
    )
    hanging.set()
    assert found == [
        Finding(Status.MISSING, "no answer within 0.2 s"),
        Finding(Status.MISSING, "this check failed: ValueError('odd /proc')"),
        fine,
    ]


@pytest.mark.parametrize("tested", [">=0.28,<0.29", "<0.28"])
def test_a_neighbour_outside_its_range_is_named(tested: str) -> None:
    known = {"title": "the client", "tested": tested, "newest": "0.28.1", "by": "this test"}
    found = of_neighbour(Neighbour(name="httpx", package="httpx", **known)).run()
    assert f"tested: {tested}" in found.found
    if tested == "<0.28":
        assert found.status is Status.LIMITED
        assert found.next_step == "pip install 'httpx<0.28'"
    else:
        assert found.status is Status.OK
