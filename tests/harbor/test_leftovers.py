"""What remains of a run of Harbor that is killed or ended early: nothing."""

import secrets
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.harbor.jobs import Job
from tests.harbor.test_runs import new_task
from tests.sandbox.sandboxes import processes_with

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def waiting(tasks: Path) -> tuple[Job, list[psutil.Process]]:
    """Returns a run of two trials at work, and all processes of their sandboxes."""
    program = f"sleep {secrets.randbelow(10**9) + 10**6}"
    solution = f"setsid {program} & {program}"
    task = new_task(tasks, "waits", solution=solution, test="true")
    job = Job(task, "-k", "2", "-n", "2")
    deadline = time.monotonic() + 120
    while len(processes_with(program)) < 4:
        assert job.process.poll() is None, job.log
        assert time.monotonic() < deadline, job.log
        time.sleep(0.1)
    found = psutil.Process(job.process.pid).children(recursive=True)
    assert len(found) >= 7  # the container, what serves its files, two servers, four commands
    return job, found


def has_gone(found: list[psutil.Process], image: Path) -> None:
    _, alive = psutil.wait_procs(found, timeout=30)
    assert alive == []
    assert processes_with(str(image)) == []
    assert not any(str(image) in line for line in Path("/proc/mounts").read_text().splitlines())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_run_that_a_signal_ends_leaves_nothing(
    tasks: Path, image: Path, number: signal.Signals
) -> None:
    job, found = waiting(tasks)
    job.process.send_signal(number)
    assert job.process.wait(60) != 0
    has_gone(found, image)
    assert job.files() == []


def test_a_container_that_dies_fails_its_trials_only(tasks: Path, image: Path) -> None:
    job, found = waiting(tasks)
    for process in found:
        if process.is_running() and str(image) in " ".join(process.cmdline()):
            process.kill()
    trials = job.wait()["waits"]
    assert [one.rewards for one in trials] == [None, None]
    assert all("SandboxError" in one.error for one in trials)
    has_gone(found, image)
    assert job.files() == []
