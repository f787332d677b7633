"""Rollouts of a training step belong to the span that is current in the trainer."""

import time
from pathlib import Path

import pytest

from prorl_service.client import ServiceCallError
from prorl_service.client.trainers_service import TrainersService, run_groups
from tests.client.parents import STEP, refusing, step
from tests.trl.async_training import AsyncTrainings
from tests.trl.test_convert import QUESTION, make_groups


def test_groups_of_a_step_are_submitted_in_its_span() -> None:
    with refusing() as service:
        trainers = TrainersService(service.url, token=None, deadline_s=0)
        groups, deadline = make_groups([QUESTION] * 2, n=2), time.monotonic() + 60
        with step(), pytest.raises(ServiceCallError):
            run_groups(trainers, groups, {}, deadline)
    assert service.seen[0] == ("/v1/rollouts", STEP)


def test_the_worker_s_thread_has_the_span_in_which_it_was_started(tmp_path: Path) -> None:
    with refusing() as service:
        worker = AsyncTrainings(service.url, tmp_path, tmp_path).worker()
        with step():
            worker.start()
        assert service.asked.wait(60)
        worker.stop()
    assert service.seen[0] == ("/v1/rollouts", STEP)
