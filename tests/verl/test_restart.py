"""Restart of a service while a step samples: it is killed and comes back knowing nothing, or it is
drained and continues where it was."""

import signal
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from prorl_service import local
from prorl_service.client import RolloutClient, ServiceCallError
from prorl_service.client.saved import read_rollouts
from prorl_service.local import LocalProcess
from prorl_service.schemas import RolloutState
from tests.faults.processes import port_to_come_back_to
from tests.verl.test_training import DIFFERENCE, EXACT, train, write_tasks
from tests.verl.training import SERVICE_OPTIONS

pytestmark = pytest.mark.timeout(1800)


class RestartedService:
    """A thread that starts the service, kills it when rollouts run, and restarts it.

    With a journal it drains it instead.
    """

    def __init__(self, directory: Path, journal: Path | None = None) -> None:
        self._options = [*SERVICE_OPTIONS]
        self._drains = journal is not None
        if journal is not None:
            self._options += ["--journal", str(journal), "--resume"]
        self.port = port_to_come_back_to()
        self.url = f"http://127.0.0.1:{self.port}"
        self.kills = 0
        self._log = directory / "service.log"
        self._started, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "RestartedService":
        self._thread.start()
        assert self._started.wait(120)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with ExitStack() as stack:
            first = self._start(stack)
            self._started.set()
            while not self._over.is_set() and not self._is_running():
                time.sleep(0.1)
            if self._drains:
                first.process.send_signal(signal.SIGTERM)
                first.process.wait(120)
            else:
                first.kill()
            self.kills += 1
            self._start(stack)
            self._over.wait()

    def _start(self, stack: ExitStack) -> LocalProcess:
        service = local.service([], log=self._log, port=self.port, options=self._options)
        return stack.enter_context(service)

    def _is_running(self) -> bool:
        with RolloutClient(self.url, retry_s=0) as client:
            try:
                return bool(client.status().rollouts.get(RolloutState.RUNNING))
            except ServiceCallError:
                return False


@pytest.mark.parametrize("is_filtered", [False, True], ids=["groups", "dynamic sampling"])
@pytest.mark.on_demand
def test_training_continues_after_a_restart_of_the_service(
    directory: Path, is_filtered: bool
) -> None:
    write_tasks(directory, *[{"pause_s": 2}] * 8)
    with RestartedService(directory) as service:
        run = train(directory, service.url, algorithm__filter_groups__enable=is_filtered)
    assert service.kills == 1
    assert all(value < EXACT for value in run.values(DIFFERENCE))
    assert len(run.metrics) == 2
    assert any(
        "the service was restarted" in line or "by its lease or a restart" in line
        for line in run.lines
    )


def test_rollouts_of_a_drained_service_go_on_and_nothing_is_sampled_again(directory: Path) -> None:
    sampled = directory / "sampled"
    write_tasks(directory, *[{"pause_s": 2, "sampled": str(sampled)}] * 8)
    with RestartedService(directory, directory / "journal") as service:
        run = train(directory, service.url, prorl__save=directory / "saved")
    assert service.kills == 1
    assert all(value < EXACT for value in run.values(DIFFERENCE))
    assert len(run.metrics) == 2
    steps = (directory / "saved").glob("step-*.jsonl")
    rollouts = [one for file in steps for one in read_rollouts(file)]
    assert len(sampled.read_text().splitlines()) == 2 * len(rollouts)
    assert [one for one in rollouts if one.resumed]
