"""Transfer of a trainer's weights to the service: by a file in its directory, or over HTTP."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest
import torch

from prorl_service.client import RolloutClient
from prorl_service.client.weights_copy import WeightsCopy
from prorl_service.schemas import (
    BackendSpec,
    PolicyClaim,
    WeightsQuery,
    WeightsReport,
    WeightsTerms,
)
from prorl_service.testing import StubEngine
from prorl_trl.nccl import Broadcaster
from prorl_trl.weights import PolicyWeights, send
from tests.server.application import Settings, serving
from tests.trainers import training

ONES = torch.ones(4, 4).numpy().tobytes()


class Client(RolloutClient):
    """Records the ways by which weights are sent."""

    def __init__(self, url: str) -> None:
        super().__init__(url, training=training().key)
        self.claim_policy(PolicyClaim(training=training()))
        self.ways: list[str] = []

    def stream_weights(
        self, content: Iterable[bytes | memoryview], *, after: int = 0, base: str = ""
    ) -> WeightsReport:
        self.ways.append("difference" if base else "http")
        return super().stream_weights(content, after=after, base=base)

    def load_weights(self, path: str, *, after: int = 0) -> WeightsReport:
        self.ways.append("directory")
        return super().load_weights(path, after=after)


class OnAnotherHost(Client):
    def weights_terms(self, query: WeightsQuery) -> WeightsTerms:
        terms = super().weights_terms(query)
        return terms.model_copy(update={"directory": "/on/another/host"})


class AcrossARestart(Client):
    """Acts as if the service restarted after the file was written and swept its directory."""

    def load_weights(self, path: str, *, after: int = 0) -> WeightsReport:
        if not self.ways:
            Path(path).unlink()
        return super().load_weights(path, after=after)


@pytest.fixture
async def engine(tiny_model: Path) -> AsyncIterator[StubEngine]:
    async with StubEngine(tiny_model, lambda _: [1]) as stub:
        yield stub


@pytest.fixture
async def url(engine: StubEngine, tmp_path: Path) -> AsyncIterator[str]:
    backends = (BackendSpec(url=engine.url),)
    settings = Settings(backends=backends, sandbox="process", journal=tmp_path / "journal")
    async with serving(settings) as address:
        yield address


def send_once(kind: type[Client], url: str) -> Client:
    return send_steps(kind, url, [torch.ones(4, 4)])


def send_steps(kind: type[Client], url: str, steps: list[torch.Tensor]) -> Client:
    copy = WeightsCopy()
    with kind(url) as client:
        for step in steps:
            send(client, PolicyWeights({"w": step}), Broadcaster(), copy)
    return client


@pytest.mark.parametrize(
    ("kind", "ways"),
    [
        (Client, ["directory"]),
        (OnAnotherHost, ["http"]),
        (AcrossARestart, ["directory", "directory"]),
    ],
)
async def test_weights_go_by_a_shared_directory_or_else_over_http(
    engine: StubEngine,
    url: str,
    kind: type[Client],
    ways: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "prorl_trl.weights")
    client = await asyncio.to_thread(send_once, kind, url)
    assert client.ways == ways
    assert isinstance(engine.weights, bytes)
    assert engine.weights == ONES
    assert ("over HTTP" in caplog.text) == (ways == ["http"])


async def test_later_weights_go_over_http_as_differences(engine: StubEngine, url: str) -> None:
    first = torch.randn(300, 300)
    changed = first.clone()
    changed[7, :9] = torch.tensor(-0.0)
    steps = [first, changed, changed[:200].clone()]
    client = await asyncio.to_thread(send_steps, OnAnotherHost, url, steps)
    assert client.ways == ["http", "difference", "http"]
    assert engine.weights == steps[-1].numpy().tobytes()


async def test_files_that_are_no_longer_needed_are_removed(
    engine: StubEngine, url: str, tmp_path: Path
) -> None:
    for _ in range(2):
        await asyncio.to_thread(send_once, Client, url)
    files = await asyncio.to_thread(lambda: list(tmp_path.rglob("weights-*")))
    assert len(files) == 1
