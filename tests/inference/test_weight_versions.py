"""Weights of another model, and versions that go back."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from prorl_service.errors import Conflict
from prorl_service.inference.pool import BackendPool, PoolConfig
from prorl_service.inference.weights import PushedWeights
from prorl_service.schemas import BackendSpec, BackendState
from prorl_service.testing import StubEngine
from prorl_service.tokens.chat import ChatFormat
from tests.inference.pools import call, condition, generate, pool_of, until, upload


class Remembered:
    """The weights as a journal keeps them and gives them to the next service."""

    def __init__(self) -> None:
        self.text = b""

    async def keep(self, pushed: PushedWeights) -> None:
        self.text = pushed.to_json()

    def pool(self, spool: Path) -> BackendPool:
        pushed = PushedWeights.from_json(self.text) if self.text else PushedWeights()
        return BackendPool(spool, PoolConfig(probe_interval_s=0.1), pushed=pushed, keep=self.keep)


async def test_weights_are_never_given_to_an_engine_of_another_model(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    first, other, same = engines
    other.model_id = "another"
    journal = Remembered()
    async with journal.pool(tmp_path) as pool:
        await pool.add(BackendSpec(url=first.url))
        await pool.stream_weights(upload(b"trained"), version=57)
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
    engines: list[StubEngine], tiny_model: Path, tmp_path: Path, chat: ChatFormat
) -> None:
    wider = wider_copy(tiny_model, tmp_path / "wider")
    journal = Remembered()
    async with journal.pool(tmp_path / "weights") as pool:
        await pool.add(BackendSpec(url=engines[0].url))
        await pool.stream_weights(upload(b"trained"), version=57)
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
        await pool.stream_weights(upload(b"trained"), version=1)
        await pool.add(BackendSpec(url=first.url))
        assert first.weights == b"trained"
    async with journal.pool(tmp_path) as pool:
        with pytest.raises(Conflict, match="are for 'stub'"):
            await pool.add(BackendSpec(url=other.url))


async def test_an_older_version_is_refused_unless_a_rewind_is_requested(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    async with pool_of(engines, tmp_path) as pool:
        await pool.stream_weights(upload(b"late"), version=57)
        with pytest.raises(Conflict, match="version 1 is older than the newest weights, 57"):
            await pool.stream_weights(upload(b"early"), version=1)
        assert (pool.policy_version, engines[0].weights) == (57, b"late")
        await pool.stream_weights(upload(b"later"), version=57)
        await pool.stream_weights(upload(b"early"), version=1, rewind=True)
        assert (pool.policy_version, engines[0].weights) == (1, b"early")
        with pytest.raises(Conflict):
            await pool.stream_weights(upload(b"first"), version=0)


@pytest.mark.slow
async def test_calls_in_flight_at_a_rewind_continue(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    engine = engines[0]
    async with pool_of([engine], tmp_path) as pool:
        await pool.stream_weights(upload(b"late"), version=57)
        engine.latency_s = 0.5
        with pool.session("r") as generator:
            calls = [asyncio.create_task(generate(generator)) for _ in range(8)]
            await condition(lambda: engine.in_flight == 8)
            await pool.stream_weights(upload(b"early"), version=1, rewind=True)
            ended = await asyncio.gather(*calls)
            assert {version for one in ended for version in one.policy_versions} == {1}
            assert engine.calls == 8
            await until(pool, BackendState.HEALTHY, 1)
            await call(generator)
