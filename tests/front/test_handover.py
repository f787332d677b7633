"""A service behind a front that is stopped: its rollouts continue at another, from their last whole
turn and with their files."""

import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from prorl_service import local
from prorl_service.client import RolloutClient
from tests.faults.processes import WAIT_S, ids_of
from tests.faults.test_resume import TURNS, assert_counted, assert_exact, counting, group

pytestmark = pytest.mark.processes


def test_rollouts_of_a_stopped_service_go_on_at_another(tmp_path: Path) -> None:
    directory = tmp_path / "services"

    def service(name: str) -> local.LocalProcess:
        announced = ("--announce", str(directory / f"{name}.json"))
        journal = ("--journal", str(tmp_path / f"{name}.sqlite"))
        options = [*announced, *journal, "--sandbox", "bubblewrap"]
        log = tmp_path / f"{name}.log"
        return stack.enter_context(local.service([], log=log, options=options))

    groups = [group(f"g{number}", n=4) for number in range(2)]
    with counting(tmp_path / "model", latency_s=0.2) as engine, ExitStack() as stack:
        first, _ = service("a"), service("b")
        front = local.front(directory, [engine.url], log=tmp_path / "front.log")
        with front as running, RolloutClient(running.url) as client:
            client.submit(groups)
            while engine.calls < 24:
                time.sleep(0.01)
            first.process.send_signal(signal.SIGTERM)
            first.process.wait(WAIT_S)
            ended = client.wait(ids_of(groups), WAIT_S)
        assert engine.calls == 8 * TURNS
        for rollout in ended:
            assert_exact(rollout, engine)
            assert_counted(rollout)
    assert [len(rollout.resumed) for rollout in ended].count(1) == 4
    assert [*(directory / "handover").iterdir()] == []
