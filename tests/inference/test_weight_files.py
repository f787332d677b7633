"""Streamed weights on disk: files that are kept or removed, and uploads that stall."""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from prorl_service.inference.pool import BackendPool, PoolConfig
from prorl_service.inference.pushed import NumberedWeights, PushedWeights
from prorl_service.inference.sources import WeightFile
from prorl_service.inference.weights.spool import UploadStalled, WeightsNotKept
from prorl_service.schemas import BackendSpec, WeightsQuery
from prorl_service.testing import StubEngine
from tests.inference.pools import kept, pool_of, upload


async def stalled_upload(started: asyncio.Event) -> AsyncIterator[bytes]:
    yield b"half"
    started.set()
    await asyncio.Event().wait()


async def test_files_of_others_are_left_alone(engine: StubEngine, tmp_path: Path) -> None:
    (tmp_path / "mine.safetensors").write_bytes(b"a user's own")
    (tmp_path / "notes.txt").write_bytes(b"a user's own")
    async with pool_of([engine], tmp_path) as pool:
        for _ in range(2):
            await pool.weights.load_stream(upload(b"trained"))
        assert len(kept(tmp_path)) == 2
    assert {"mine.safetensors", "notes.txt"} < set(os.listdir(tmp_path))


async def test_weights_are_on_disk_before_they_are_remembered(
    engine: StubEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    async def keep(_: object) -> None:
        assert any(name.startswith(f"{tmp_path}/") for name in synced), "the file is not synced"
        assert str(tmp_path) in synced, "the directory is not synced"

    monkeypatch.setattr(os, "fsync", noting)
    async with BackendPool(tmp_path, keep=keep) as pool:
        await pool.add(BackendSpec(url=engine.url))
        await pool.weights.load_stream(upload(b"trained"))


async def test_a_stalled_upload_is_ended_and_leaves_nothing(
    engine: StubEngine, tmp_path: Path
) -> None:
    config = PoolConfig(upload_silence_s=0.2)
    async with BackendPool(tmp_path, config) as pool:
        with pytest.raises(UploadStalled, match=r"stalled after 4 bytes: silent for 0.2 s"):
            await pool.weights.load_stream(stalled_upload(asyncio.Event()))
        assert kept(tmp_path) == set()


async def test_weights_that_cannot_be_written_fail_with_the_reason(
    engine: StubEngine, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    async with BackendPool(tmp_path / "file") as pool:
        with pytest.raises(WeightsNotKept, match=r"cannot be written to .*/file: File exists"):
            await pool.weights.load_stream(upload(b"trained"))


async def test_files_left_by_a_killed_process_are_removed_at_the_next_start(
    engine: StubEngine, tmp_path: Path
) -> None:
    async with pool_of([engine], tmp_path) as pool:
        await pool.weights.load_stream(upload(b"trained"))
    (name,) = os.listdir(tmp_path)
    pushed = PushedWeights(NumberedWeights(WeightFile(tmp_path / name), 1))
    for other in ("weights-%s.partial", "weights-%s.safetensors", "probe-%s"):
        (tmp_path / (other % uuid.uuid4().hex)).touch()
    async with BackendPool(tmp_path, pushed=pushed) as pool:
        terms = await pool.weights.terms(WeightsQuery())
        assert set(os.listdir(tmp_path)) == {name, terms.probe}
    assert os.listdir(tmp_path) == [name]
