"""Work without a caller, or whose caller left: an error in it makes the service unhealthy."""

import asyncio

import pytest

from prorl_service.errors import NotFound
from prorl_service.pipeline.pipeline import Pipeline
from prorl_service.rollouts.journal import Journal
from prorl_service.rollouts.record import RolloutRecord
from prorl_service.schemas import Stage
from tests.pipeline.probe_agent import Probe, group


async def failure_of(pipeline: Pipeline) -> str:
    """Waits for a failure and returns it; only the test's own timeout bounds the wait."""
    while pipeline.background.failure is None:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    return pipeline.background.failure


async def test_a_lease_whose_rollouts_cannot_be_reclaimed_is_noticed(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise KeyError("a bug")

    hanging = group("left", acts={Stage.RUN: "hang"})
    await pipeline.submit([hanging.model_copy(update={"lease_s": 0.3})])
    await Probe.started.wait()
    with monkeypatch.context() as patch:
        patch.setattr(RolloutRecord, "request_cancel", refuse)
        failure = await failure_of(pipeline)
    assert failure == "background task reclaim group left failed: KeyError('a bug')"


async def test_a_failure_to_queue_rollouts_is_noticed_even_if_the_client_left(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, is_written = Journal.accept, asyncio.Event()

    def noted(*args: object) -> object:
        is_written.set()
        return accept(*args)  # type: ignore[arg-type]

    def refuse(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(Journal, "accept", noted)
    monkeypatch.setattr(RolloutRecord, "watch", refuse)
    submission = asyncio.create_task(pipeline.submit([group()]))
    await is_written.wait()
    submission.cancel()
    assert "accept groups failed: KeyError('a bug')" in await failure_of(pipeline)


async def test_an_error_that_reaches_its_caller_is_left_to_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        raise NotFound("it has gone")

    async with Journal() as journal:
        with pytest.raises(NotFound):
            await journal.unless_failing(work())
        assert journal.background.failure is None
    assert caplog.records == []
