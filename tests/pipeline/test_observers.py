"""Observers of rollouts: what they are told, in which order, and that none can harm a rollout."""

import asyncio
from pathlib import Path

import pytest

from prorl_service.attempt import Attempt
from prorl_service.pipeline.config import PipelineConfig
from prorl_service.rollouts.journal.tables import EndedRow
from prorl_service.rollouts.observers import Observer
from prorl_service.rollouts.record import RolloutRecord
from prorl_service.schemas import Group, Rollout, RolloutState, Stage
from prorl_service.testing import StubEngine
from tests.pipeline.pipelines import ends, pipeline_of
from tests.pipeline.probe_agent import Probe, group

EVENTS = ("accepted", "moved", "changed", "ended")
TO_READY = ["init", "INIT, 0 turns", "ready"]
TO_CALL = ["running", "RUN, 0 turns", "RUN, in a call"]
TO_END = ["evaluating", "EVAL, 1 turns", "done", "ended as done"]


class Watching(Observer):
    def __init__(self, name: str = "", log: list[str] | None = None) -> None:
        self._name = name
        self.told: list[str] = [] if log is None else log

    def accepted(self, group: Group) -> None:
        self._note("accepted")

    def moved(self, record: RolloutRecord) -> None:
        self._note(record.state.value)

    def changed(self, rollout: Attempt) -> None:
        what = "in a call" if rollout.calls_model else f"{len(rollout.turns)} turns"
        self._note(f"{rollout.stage.value.upper()}, {what}")

    def ended(self, record: RolloutRecord, row: EndedRow) -> None:
        assert record.is_terminal
        answer = Rollout.model_validate_json(row.answer)
        assert (answer.rollout_id, answer.state) == (record.rollout_id, record.state)
        self._note(f"ended as {answer.state.value}")

    def _note(self, event: str) -> None:
        self.told.append(f"{self._name}{event}")


class Broken(Observer):
    """Raises in one of its methods."""

    def __init__(self, where: str) -> None:
        self._where = where
        self.told: list[str] = []

    def accepted(self, group: Group) -> None:
        self._note("accepted")

    def moved(self, record: RolloutRecord) -> None:
        self._note("moved")

    def changed(self, rollout: Attempt) -> None:
        self._note("changed")

    def ended(self, record: RolloutRecord, row: EndedRow) -> None:
        self._note("ended")

    def _note(self, event: str) -> None:
        self.told.append(event)
        if event == self._where:
            raise KeyError("a bug")


@pytest.fixture(autouse=True)
async def started() -> None:
    Probe.started = asyncio.Event()


@pytest.fixture
def watching() -> Watching:
    return Watching()


async def test_a_rollout_is_told_from_its_acceptance_to_its_end(
    engine: StubEngine, tmp_path: Path, watching: Watching
) -> None:
    async with pipeline_of([Probe], engine, tmp_path, observers=[watching]) as pipeline:
        await ends(pipeline, group())
    assert watching.told == ["accepted", *TO_READY, *TO_CALL, "RUN, 1 turns", *TO_END]


@pytest.mark.slow
async def test_an_attempt_that_is_retried_goes_back_to_the_queue(
    engine: StubEngine, tmp_path: Path, watching: Watching
) -> None:
    engine.generate_status = 500
    async with pipeline_of([Probe], engine, tmp_path, observers=[watching]) as pipeline:
        ending = asyncio.create_task(ends(pipeline, group()))
        while "queued" not in watching.told:  # noqa: ASYNC110 - only the test's timeout bounds it
            await asyncio.sleep(0.01)
        engine.generate_status = 200
        (rollout,) = await ending
    assert rollout.attempt == 2
    again = [*TO_READY, *TO_CALL, "RUN, 1 turns", *TO_END]
    assert watching.told == ["accepted", *TO_READY, *TO_CALL, "queued", *again]


async def test_cancelled_rollouts_end_wherever_they_are(
    engine: StubEngine, tmp_path: Path, watching: Watching
) -> None:
    others = Watching()
    config = PipelineConfig(init_workers=1)
    async with pipeline_of([Probe], engine, tmp_path, config, observers=[watching]) as pipeline:
        await pipeline.submit([group("works", acts={Stage.INIT: "hang"})])
        await Probe.started.wait()
        pipeline.inflight.observers.add(others)
        await pipeline.submit([group("waits")])
        await pipeline.cancel(["waits.0"])
        assert others.told == ["accepted", "cancelled", "ended as cancelled"]
        await pipeline.cancel(["works.0"])
        assert others.told[3:] == ["cancelled", "ended as cancelled"]
    began = ["accepted", *TO_READY[:2]]
    assert watching.told == [*began, *others.told]


async def test_observers_are_told_one_after_the_other(engine: StubEngine, tmp_path: Path) -> None:
    log: list[str] = []
    both = [Watching("first: ", log), Watching("second: ", log)]
    async with pipeline_of([Probe], engine, tmp_path, observers=both) as pipeline:
        await ends(pipeline, group())
    first, second = log[::2], log[1::2]
    assert first[-1] == "first: ended as done"
    assert second == [one.replace("first", "second") for one in first]


@pytest.mark.parametrize("where", EVENTS)
async def test_an_observer_that_raises_is_dropped_and_costs_no_rollout(
    engine: StubEngine,
    tmp_path: Path,
    watching: Watching,
    caplog: pytest.LogCaptureFixture,
    where: str,
) -> None:
    broken = Broken(where)
    async with pipeline_of([Probe], engine, tmp_path, observers=[broken, watching]) as pipeline:
        rollouts = await ends(pipeline, group(), group("after"))
        assert pipeline.background.failure is None
    assert [(one.state, one.attempt) for one in rollouts] == [(RolloutState.DONE, 1)] * 2
    assert watching.told.count("ended as done") == 2
    assert (broken.told.count(where), broken.told[-1]) == (1, where)
    [line] = [one for one in caplog.records if one.levelname == "ERROR"]
    assert line.getMessage() == "Broken failed, rollouts continue without it"
    assert "KeyError: 'a bug'" in caplog.text
