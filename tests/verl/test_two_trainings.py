"""A second training on the service of one that trains: refused before Ray starts, in one line."""

import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from prorl_service.client import RolloutClient
from prorl_service.client.policy import HeldPolicy
from prorl_service.errors import PolicyTaken
from prorl_service.local import LocalProcess
from tests.verl.test_training import DIFFERENCE, EXACT, PRORL, train, write_tasks
from tests.verl.training import ENVIRONMENT, STOCK, command_of

pytestmark = pytest.mark.timeout(1800)


def start_of(directory: Path, url: str) -> subprocess.CompletedProcess[str]:
    """Runs VeRL's command, which has to end before Ray starts."""
    own = {
        **PRORL,
        "prorl.url": url,
        "trainer.default_local_dir": directory / "second",
        "hydra.run.dir": directory / "hydra-second",
    }
    return subprocess.run(
        command_of(STOCK, directory, str(directory / "ray"), own),
        cwd=directory,
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def assert_refused(ended: subprocess.CompletedProcess[str], pid: int) -> None:
    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-2:]
    assert f"pid {pid} on " in last[0]
    assert "prorl.take_over=true" in last[1]
    assert "Traceback" not in ended.stderr


def test_a_second_training_is_refused_and_the_first_goes_on(
    directory: Path, service: LocalProcess
) -> None:
    go = directory / "go"
    write_tasks(directory, *[{"wait_for": str(go)}] * 16)
    with ThreadPoolExecutor() as pool, RolloutClient(service.url) as client:
        first = pool.submit(train, directory, service.url, trainer__total_training_steps=3)
        while (held := client.status().training) is None:
            assert not first.done(), first.result()
            time.sleep(0.5)
        assert_refused(start_of(directory, service.url), held.training.pid)
        with pytest.raises(PolicyTaken, match=f"pid {held.training.pid} on "):
            HeldPolicy(service.url).claim()
        go.touch()
        run = first.result()
        ended = client.status().training
    differences = [one[DIFFERENCE] for one in run.metrics if DIFFERENCE in one]
    assert len(differences) == 3
    assert max(differences) < EXACT
    assert ended is not None
    assert not ended.is_live, "it has released the policy"


def test_a_service_that_trains_for_others_is_refused(
    directory: Path, service: LocalProcess
) -> None:
    write_tasks(directory, *[{}] * 8)
    with HeldPolicy(service.url):
        assert_refused(start_of(directory, service.url), os.getpid())
