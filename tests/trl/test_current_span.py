"""Rollouts of a training step belong to the span that is current in the trainer."""

import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import trl
from packaging.version import Version

from prorl_service.client import RolloutClient, ServiceCallError
from prorl_trl.conversation import run_groups
from tests.client.parents import STEP, refusing, step
from tests.trl.test_convert import QUESTION, make_groups

if Version(trl.__version__) < Version("1.16"):
    pytest.skip("the patches for CPU are of TRL 1.16", allow_module_level=True)

from tests.trl.async_training import make_config, make_worker


def no_bar(what: str, total: int, done: int) -> AbstractContextManager[Any]:
    return nullcontext()


def test_groups_of_a_step_are_submitted_in_its_span() -> None:
    with refusing() as service:

        def client(retry_s: float | None = None) -> RolloutClient:
            return RolloutClient(service.url, retry_s=0)

        with step(), pytest.raises(ServiceCallError):
            run_groups(client, make_groups([QUESTION] * 2, n=2), {}, time.monotonic() + 60, no_bar)
    assert service.seen[0] == ("/v1/rollouts", STEP)


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")
def test_the_worker_s_thread_has_the_span_in_which_it_was_started(tmp_path: Path) -> None:
    with refusing() as service:
        config = make_config(tmp_path)
        config.max_inflight_tasks = 8  # as the trainer sets it
        worker = make_worker(service.url, config)
        with step():
            worker.start()
        assert service.asked.wait(60)
        worker.stop()
    assert service.seen[0] == ("/v1/rollouts", STEP)
