"""Rollouts of a training step belong to the span that is current in the trainer."""

import asyncio
import threading

import pytest

from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.schemas import Group, Message, Task
from prorl_verl.runs import ended
from tests.client.parents import STEP, refusing, step

TASK = Task(task_id="t", agent="a", messages=[Message(role="user", content="Go.")])


def test_what_the_manager_s_thread_submits_has_the_trainer_s_span() -> None:
    """The manager hands its work over in this way."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def submit(url: str) -> None:
        async with AsyncRolloutClient(url, retry_s=0) as client:
            async for _ in ended(client, [Group(group_id="g", task=TASK)], 60):
                pass

    with refusing() as service:
        with step():
            submitted = asyncio.run_coroutine_threadsafe(submit(service.url), loop)
        with pytest.raises(ServiceCallError):
            submitted.result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    assert service.seen == [("/v1/rollouts", STEP)]
