"""Weights of another model, and the versions that the service counts."""

import json
import shutil
from pathlib import Path

import pytest

from prorl_service.errors import BackendRejected, Conflict
from prorl_service.inference.pool import BackendPool, PoolConfig
from prorl_service.inference.pushed import PushedWeights
from prorl_service.inference.sources import WeightFile
from prorl_service.schemas import BackendSpec, BackendState, Push
from prorl_service.testing import StubEngine, safetensors
from prorl_service.tokens.chat import ChatFormat
from tests.inference.pools import pool_of, upload


class Remembered:
    """The weights as a journal keeps them and gives them to the next service."""

    def __init__(self) -> None:
        self.text = b""

    async def keep(self, pushed: PushedWeights) -> None:
        self.text = pushed.to_json()

    def pool(self, spool: Path) -> BackendPool:
        pushed = PushedWeights.from_json(self.text, Path()) if self.text else PushedWeights()
        return BackendPool(spool, PoolConfig(probe_interval_s=0.1), pushed=pushed, keep=self.keep)


async def test_weights_are_never_given_to_an_engine_of_another_model(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    first, other, same = engines
    other.model_id = "another"
    journal = Remembered()
    async with journal.pool(tmp_path) as pool:
        await pool.add(BackendSpec(url=first.url))
        await pool.weights.load_stream(upload(b"trained"), Push(after=56))
    async with journal.pool(tmp_path) as pool:
        await pool.add(BackendSpec(url=other.url), must_answer=False)
        (status,) = pool.statuses()
        assert status.state is BackendState.DOWN
        assert "serves 'another'" in status.reason
        assert "weights of version 57 are for 'stub'" in status.reason
        await pool.add(BackendSpec(url=same.url))
        assert (other.weights, same.weights) == (b"", b"trained")


def wider_copy(model: Path, directory: Path) -> Path:
    shutil.copytree(model, directory)
    config = json.loads((directory / "config.json").read_text())
    config["hidden_size"] *= 2
    (directory / "config.json").write_text(json.dumps(config))
    return directory


async def test_weights_are_never_given_to_a_namesake_of_another_shape(
    engine: StubEngine, tiny_model: Path, tmp_path: Path, chat: ChatFormat
) -> None:
    wider = wider_copy(tiny_model, tmp_path / "wider")
    journal = Remembered()
    async with journal.pool(tmp_path / "weights") as pool:
        await pool.add(BackendSpec(url=engine.url))
        await pool.weights.load_stream(upload(b"trained"), Push(after=56))
    async with StubEngine(wider, lambda _: [chat.end_of_turn_id]) as other:
        async with journal.pool(tmp_path / "weights") as pool:
            await pool.add(BackendSpec(url=other.url), must_answer=False)
            assert "are for 'stub' (config" in pool.statuses()[0].reason
        assert other.weights == b""


async def test_weights_pushed_before_any_engine_belong_to_the_first_that_joins(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    first, other, _ = engines
    other.model_id = "another"
    journal = Remembered()
    async with journal.pool(tmp_path) as pool:
        await pool.weights.load_stream(upload(b"trained"))
        await pool.add(BackendSpec(url=first.url))
        assert first.weights == b"trained"
    async with journal.pool(tmp_path) as pool:
        with pytest.raises(Conflict, match="are for 'stub'"):
            await pool.add(BackendSpec(url=other.url))


async def test_versions_are_the_services_own_count_and_only_grow(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    async with pool_of(engines, tmp_path) as pool:
        assert (await pool.weights.load_stream(upload(b"first"))).version == 1
        assert (await pool.weights.load_stream(upload(b"late"), Push(after=56))).version == 57
        assert (await pool.weights.load_stream(upload(b"later"), Push(after=3))).version == 58
        engines[0].refuses_weights = True
        with pytest.raises(BackendRejected):
            await pool.weights.load_stream(upload(b"refused"))
        engines[0].refuses_weights = False
        assert (await pool.weights.load_stream(upload(b"next"))).version == 60, "59 was tried"
        assert (pool.policy_version, engines[0].weights) == (60, b"next")


async def test_a_repeated_push_is_the_same_push(engines: list[StubEngine], tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    path.write_bytes(safetensors(b"trained"))
    async with pool_of(engines, tmp_path) as pool:
        push, source = Push(), WeightFile(path)
        first = await pool.weights.load(source, push)
        assert await pool.weights.load(source, push) == first
        assert (first.version, engines[0].weights) == (1, b"trained")
        assert path.exists()


async def test_a_version_that_an_engine_has_seen_is_not_given_again(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    """A service without a journal begins to count again, and its engines still have versions."""
    async with pool_of(engines, tmp_path / "first") as pool:
        await pool.weights.load_stream(upload(b"trained"), Push(after=6))
    async with pool_of(engines, tmp_path / "second") as pool:
        assert (await pool.weights.load_stream(upload(b"other"))).version == 8
