"""Weights by NCCL: the trainer's side, the service and two engines, with stand-ins for vLLM's."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import fields, replace
from functools import partial
from inspect import signature
from pathlib import Path

import pytest
import torch

from prorl_service import neighbours
from prorl_service.client import RolloutClient, ServiceCallError
from prorl_service.client.weights_copy import WeightsCopy
from prorl_service.inference.engines.versions import version_of
from prorl_service.schemas import BackendSpec, BackendState, WeightsReport
from prorl_trl import nccl
from prorl_trl.nccl import Broadcaster
from prorl_trl.weights import PolicyWeights, send
from tests.inference.nccl_vllm import (
    NcclVllm,
    ParamMeta,
    TrainerEngine,
    TrainerInitInfo,
    digest_of,
    installed,
)
from tests.server.application import Settings, serving
from tests.trainers import trainer as claiming
from tests.trainers import training

VLLM = Path(__file__).parents[2] / ".venv-vllm/bin/python"
UPDATE = [
    "pause",
    "start_weight_update",
    "update_weights",
    "finish_weight_update",
    "update_weight_version",
    "resume",
]


class Trainer:
    """Sends weights that are all `version`, from a thread, as trainers do."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._broadcaster = Broadcaster()

    async def send(self, version: int) -> WeightsReport:
        return await asyncio.to_thread(self._send, version)

    def _send(self, version: int) -> WeightsReport:
        with claiming(self.url) as client:
            return send(client, PolicyWeights(policy(version)), self._broadcaster, WeightsCopy())


def policy(version: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Returns weights of `version`; `dtype` applies to the matrix, not to the vector."""
    return {
        "layer.weight": torch.full((5, 3), float(version), dtype=dtype),
        "norm.weight": torch.full((3,), float(version)),
    }


def has(engine: NcclVllm, version: int) -> bool:
    expected = digest_of(policy(version, torch.bfloat16))
    return (engine.weights, version_of(engine.label)) == (expected, version)


@pytest.fixture(params=["0.32", "0.33"])
async def engines(
    request: pytest.FixtureRequest, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[dict[str, NcclVllm]]:
    """Yields two engines by URL, with one and two workers, beside a trainer's vLLM of a release."""
    monkeypatch.setattr(nccl, "is_possible", lambda: True)
    async with AsyncExitStack() as stack:
        stack.enter_context(installed(monkeypatch, of_033=request.param == "0.33"))
        started = [NcclVllm(str(tiny_model), workers) for workers in (1, 2)]
        for one in started:
            await stack.enter_async_context(one)
        yield {one.url: one for one in started}
        for one in started:
            one.restart()  # frees a sender that waits


@pytest.fixture
def settings(engines: dict[str, NcclVllm], tmp_path: Path) -> Settings:
    backends = tuple(BackendSpec(url=url) for url in engines)
    return Settings(backends=backends, sandbox="process", journal=tmp_path / "journal")


@pytest.fixture
async def trainer(settings: Settings) -> AsyncIterator[Trainer]:
    async with serving(settings) as url:
        await states(url, {BackendState.HEALTHY})
        yield Trainer(url)


async def states(url: str, wanted: set[BackendState]) -> list[str]:
    """Waits until the backends are in the wanted states; returns their reasons."""
    while True:
        with RolloutClient(url) as client:
            backends = await asyncio.to_thread(client.backends)
        if {one.state for one in backends} == wanted:
            return [one.reason for one in backends]
        await asyncio.sleep(0.05)


async def test_all_workers_of_all_engines_receive_what_the_trainer_broadcasts(
    engines: dict[str, NcclVllm], trainer: Trainer
) -> None:
    for version in (1, 2):
        report = await trainer.send(version)
        assert (len(report.applied), report.pending) == (2, [])
        assert all(has(engine, version) for engine in engines.values())
    for engine in engines.values():
        assert engine.steps == ["init_weight_transfer_engine", *UPDATE, *UPDATE]
        assert not engine.paused.is_set()
    assert sorted(rank for engine in engines.values() for rank in engine.ranks) == [1, 2, 3]


@pytest.mark.slow
async def test_a_restarted_engine_waits_for_the_next_weights_in_a_new_group(
    engines: dict[str, NcclVllm], trainer: Trainer
) -> None:
    await trainer.send(1)
    lost = next(iter(engines.values()))
    lost.restart()
    reasons = await states(trainer.url, {BackendState.DOWN, BackendState.HEALTHY})
    assert any("not kept" in reason and "next weights" in reason for reason in reasons)
    await trainer.send(2)
    await states(trainer.url, {BackendState.HEALTHY})
    assert all(has(engine, 2) for engine in engines.values())


@pytest.mark.slow
@pytest.mark.logs("backend .* is down", "stays paused")
async def test_engines_keep_their_weights_if_one_of_them_fails(
    engines: dict[str, NcclVllm], trainer: Trainer
) -> None:
    await trainer.send(1)
    failing, other = engines.values()
    failing.fails_to_pause = True
    with pytest.raises(ServiceCallError):
        await trainer.send(2)
    assert has(other, 1)
    failing.fails_to_pause = False
    await states(trainer.url, {BackendState.HEALTHY})
    await trainer.send(3)
    assert has(failing, 3)
    assert has(other, 3)


@pytest.mark.slow
async def test_a_restarted_service_takes_engines_that_have_the_weights(
    engines: dict[str, NcclVllm], settings: Settings
) -> None:
    async with serving(settings) as url:
        await states(url, {BackendState.HEALTHY})
        await Trainer(url).send(1)
    async with serving(replace(settings, resume=True)) as url:
        await states(url, {BackendState.HEALTHY})
        trainer = Trainer(url)
        await trainer.send(2)
        assert all(has(engine, 2) for engine in engines.values())


async def test_a_trainer_that_cannot_broadcast_is_refused_with_a_hint(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl, "is_possible", lambda: False)
    with pytest.raises(ServiceCallError, match="takes no files of weights") as caught:
        await trainer.send(1)
    assert "vLLM 0.28" in str(caught.value)


async def test_an_unknown_or_wrongly_sized_group_is_refused(
    engines: dict[str, NcclVllm], trainer: Trainer
) -> None:
    await trainer.send(1)
    with RolloutClient(trainer.url, training=training().key) as client:
        broadcast = partial(client.broadcast_weights, "another", {})
        with pytest.raises(ServiceCallError, match="open a new one") as caught:
            await asyncio.to_thread(broadcast)
        assert caught.value.http_status == 410
        opening = partial(client.open_nccl_group, {"world_size": 3})
        with pytest.raises(ServiceCallError, match="needs 4 processes, not 3"):
            await asyncio.to_thread(opening)


@pytest.mark.processes
@pytest.mark.skipif(not VLLM.exists(), reason="run scripts/setup-vllm")
def test_the_stand_ins_have_the_signatures_of_vllm() -> None:
    """The parts of vLLM that the plug-in uses have the names and parameters of the stand-ins."""
    script = Path(__file__).parent / "nccl_signatures.py"
    done = subprocess.run([str(VLLM), str(script)], capture_output=True, text=True, check=True)
    theirs = json.loads(done.stdout.splitlines()[-1])
    assert {field.name for field in fields(TrainerInitInfo)} <= set(theirs["init_info"])
    assert [field.name for field in fields(ParamMeta)] == theirs["param_meta"]
    assert list(signature(TrainerEngine.trainer_init).parameters) == theirs["trainer_init"]
    assert set(theirs["client"]) <= vars(nccl._Engines).keys()
    assert set(theirs["source"]) <= vars(nccl._EarlierPolicy).keys()


@pytest.mark.parametrize(
    ("release", "is_possible"),
    [("0.27.1", False), ("0.28.0", True), ("0.33.0", True), ("0.34.0", False)],
)
def test_nccl_takes_the_releases_that_it_was_tested_with(
    release: str,
    is_possible: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(neighbours, "version", lambda package: release)
    assert nccl.is_possible() is is_possible
    assert (f"vllm {release} is installed" in caplog.text) is not is_possible
