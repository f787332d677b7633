"""Weights over HTTP: uploads that stall, services in one directory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from prorl_service.inference.pool import PoolConfig
from prorl_service.schemas import BackendSpec, BackendState
from prorl_service.testing import StubEngine, safetensors
from prorl_service.tokens.chat import ChatFormat
from tests.server.application import Settings, serving, until
from tests.trainers import async_trainer, training
from tests.waits import condition


@pytest.fixture
async def other_engine(tiny_model: Path, chat: ChatFormat) -> AsyncIterator[StubEngine]:
    async with StubEngine(tiny_model, lambda _: [chat.end_of_turn_id]) as stub:
        yield stub


def settings_of(engine: StubEngine, journal: Path | None = None) -> Settings:
    backends = (BackendSpec(url=engine.url),)
    pool = PoolConfig(probe_interval_s=0.1, upload_silence_s=1)
    return Settings(backends=backends, sandbox="process", journal=journal, pool=pool)


@pytest.mark.slow
async def test_a_stalled_upload_is_answered_and_delays_no_other(engine: StubEngine) -> None:
    async with serving(settings_of(engine)) as url, async_trainer(url) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
        head = (
            "PUT /v1/weights HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 999\r\n"
            f"Prorl-Training: {training().key}\r\n\r\n"
        )
        writer.write(head.encode() + b"half")
        await writer.drain()
        await client.stream_weights([safetensors(b"next")])
        assert engine.weights == b"next"
        answer = (await reader.read()).decode()
        writer.close()
        assert answer.startswith("HTTP/1.1 408 ")
        assert "the upload stalled after 4 bytes" in answer


@pytest.mark.slow
async def test_journals_in_one_directory_keep_their_weights_apart(
    engine: StubEngine, other_engine: StubEngine, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        urls = [
            await stack.enter_async_context(serving(settings_of(one, tmp_path / f"run.{number}")))
            for number, one in enumerate((engine, other_engine))
        ]
        clients = [await stack.enter_async_context(async_trainer(url)) for url in urls]
        for client, content in zip(clients, (b"first", b"second"), strict=True):
            await client.stream_weights([safetensors(content)])
        engine.restart()
        await condition(lambda: engine.weights == b"first")
        await until(clients[0].backends, lambda found: found[0].state is BackendState.HEALTHY)
        assert other_engine.weights == b"second"
