"""Weights sent as differences: whatever happens, engines get the bytes of a whole push."""

import asyncio
import os
import uuid
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from prorl_service.client import weights_copy
from prorl_service.client.weights_copy import WeightsCopy
from prorl_service.inference.pool import PoolConfig
from prorl_service.schemas import BackendSpec, TrainingIdentity, WeightsQuery, WeightsReport
from prorl_service.testing import StubEngine
from tests.server.application import Settings, serving
from tests.trainers import Content, trainer, training
from tests.waits import condition

PLACES = st.lists(st.integers(0, 2**17 - 1), max_size=20)


class Histories(RuleBasedStateMachine):
    model: ClassVar[Path]
    sent: ClassVar[list[bool]] = []
    """Whether each push in all histories was a difference."""

    @initialize()
    def start(self) -> None:
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(weights_copy, "FIRST_DIFFERENCES", 10**9)  # times depend on the machine
        self._patch.setattr(weights_copy, "WHOLE_EVERY", 4)
        self._directory = TemporaryDirectory()
        self._runner = asyncio.Runner()
        self._values, self._version = bytearray(2**17), 0
        self._copy, self._who = WeightsCopy(), training()
        self._runner.run(self._start_engine())

    async def _start_engine(self) -> None:
        self._engines, self._service = AsyncExitStack(), AsyncExitStack()
        self._engine = StubEngine(self.model, lambda _: [1])
        self._engine.is_elsewhere = True
        await self._engines.enter_async_context(self._engine)
        await self._serve()

    async def _serve(self) -> None:
        journal = Path(self._directory.name, "journal")
        settings = Settings(
            backends=(BackendSpec(url=self._engine.url),),
            sandbox="process",
            journal=journal,
            resume=await asyncio.to_thread(journal.exists),
            pool=PoolConfig(probe_interval_s=0.05),
        )
        self._url = await self._service.enter_async_context(serving(settings))

    def teardown(self) -> None:
        self._runner.run(self._service.aclose())
        self._runner.run(self._engines.aclose())
        self._runner.close()
        self._directory.cleanup()
        self._patch.undo()

    # --- what happens -----------------------------------------------------------------------------

    @rule(places=PLACES, more=st.sampled_from([0, 0, 0, 1, 70_000]))
    def push(self, places: list[int], more: int) -> None:
        """Changes some values, and perhaps the layout."""
        for place in places:
            self._values[place] ^= 1 + place % 255
        self._values += os.urandom(more)
        self._send(self._copy, self._who, bytes(self._values))

    @rule()
    def push_other_weights(self) -> None:
        self._send(self._copy, self._who, os.urandom(len(self._values)))

    @rule(values=st.binary(min_size=3, max_size=3))
    def push_of_another_training(self, values: bytes) -> None:
        self._send(WeightsCopy(), training("another", uuid.uuid4().hex), values)

    @rule()
    def restart_trainer(self) -> None:
        self._copy = WeightsCopy()

    @rule()
    def restart_engine(self) -> None:
        self._engine.restart()

    @rule(forgets=st.booleans())
    def restart_service(self, forgets: bool) -> None:
        async def restart() -> None:
            await self._service.aclose()
            if forgets:
                self._directory.cleanup()
                self._directory = TemporaryDirectory()
            await self._serve()

        self._runner.run(restart())

    @rule()
    @precondition(lambda self: self._files())
    def break_file_of_service(self) -> None:
        (path,) = self._files()
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        self._engine.restart()  # the test compares what it is given from here on

    @rule()
    def break_copy_of_trainer(self) -> None:
        if self._copy._directory is not None:
            path = self._copy._directory / "copy"
            path.write_bytes(bytes(path.stat().st_size))

    @rule()
    def break_file_of_engine(self) -> None:
        if (last := self._engine._fetches._last) is not None:
            os.pwrite(last._file.fileno(), b"broken", 1000)

    # --- what must hold ---------------------------------------------------------------------------

    def _files(self) -> list[Path]:
        return [*Path(self._directory.name).rglob("weights-*.safetensors")]

    def _send(self, copy: WeightsCopy, who: TrainingIdentity, values: bytes) -> None:
        async def send() -> None:
            report = await asyncio.to_thread(pushed)
            assert report.version > self._version
            self._version = report.version
            async with asyncio.timeout(60):
                await condition(lambda: self._engine.version == self._version)
            assert self._engine.weights == values

        def pushed() -> WeightsReport:
            with trainer(self._url, who) as client:
                base = client.weights_terms(WeightsQuery()).base
                content = Content(values)
                report = copy.send(client, content, base=base, after=self._version)
                client.release_policy()
            (file,) = self._files()
            assert file.read_bytes() == content.file
            self.sent.append(file.with_suffix(".difference").exists())
            return report

        self._runner.run(send())


@pytest.mark.slow
def test_engines_have_the_bytes_of_a_whole_push_after_any_history(tiny_model: Path) -> None:
    Histories.model = tiny_model
    case = Histories.TestCase
    case.settings = settings(max_examples=15, stateful_step_count=15, deadline=None)
    case().runTest()
    assert {*Histories.sent} == {True, False}
