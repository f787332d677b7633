"""Exact versions of every token for releases of vLLM whose answers do not report them."""

import asyncio
from collections.abc import Collection
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorl_service.errors import BackendError, BackendRejected, BackendUnavailable
from prorl_service.inference.backend import Backend
from prorl_service.inference.base import Generation
from prorl_service.inference.engines.base import EngineCall
from prorl_service.inference.engines.vllm_releases import release_of
from prorl_service.inference.pool import BackendPool, PoolConfig
from prorl_service.inference.prompt_json import EncodedPrompt
from prorl_service.inference.sources import WeightDirectory
from prorl_service.schemas import BackendSpec, BackendState, Sampling
from prorl_service.utils.budget import WorkClock
from tests.inference.old_vllm import (
    NO_WEIGHTS,
    VOCABULARY,
    OldVllm,
    known_backend,
    token_after,
)
from tests.waits import condition

PROMPT = [1, 2, 3]
LENGTH = 40
RELEASES = [(0, 22), (0, 24), (0, 26), (0, 27), (0, 31)]
UNLABELLED = [release for release in RELEASES if release < (0, 27)]


async def ask(backend: Backend, *, seed: int | None = 7) -> Generation:
    return await backend.generate(EngineCall(EncodedPrompt(PROMPT), Sampling(), LENGTH, seed, "r"))


async def load(backend: Backend, version: int, timeout_s: float = 20) -> None:
    await backend.load_weights(WeightDirectory(str(version)), str(version), timeout_s=timeout_s)


def weights_of(version: int) -> str:
    return str(version) if version else NO_WEIGHTS


def assert_exact(answer: Generation) -> None:
    """Asserts that each token is the one that the weights of its version give."""
    for index, (token, version) in enumerate(
        zip(answer.token_ids, answer.policy_versions, strict=True)
    ):
        chain = PROMPT + answer.token_ids[:index]
        assert token == token_after(chain, weights_of(version)), index
    assert answer.logprobs == [-token / VOCABULARY for token in answer.token_ids]
    assert (len(answer.token_ids), answer.finish_reason) == (LENGTH, "length")


class Updater:
    """Pushes new weights, version by version, before the tokens whose numbers are in `before`."""

    def __init__(self, engine: OldVllm, backend: Backend, before: Collection[int]) -> None:
        self.updates: list[asyncio.Task[None]] = []
        self._engine = engine
        self._backend = backend
        self._before = set(before)
        engine.before_token = self._before_token

    async def _before_token(self) -> None:
        number = self._engine.sampled
        if number in self._before:
            self._before.remove(number)
            update = load(self._backend, len(self.updates) + 1)
            self.updates.append(asyncio.create_task(update))
            await self._engine.paused.wait()


@pytest.mark.slow
@pytest.mark.parametrize("release", [(0, 22), (0, 26), (0, 31)])
@settings(max_examples=25)
@given(before=st.sets(st.integers(0, LENGTH - 1), max_size=6))
async def test_a_call_over_any_updates_has_the_exact_version_of_every_token(
    release: tuple[int, int], before: set[int]
) -> None:
    engine = OldVllm(release)
    async with known_backend(engine) as backend:
        updater = Updater(engine, backend, before)
        answer = await ask(backend)
        await asyncio.gather(*updater.updates)
    assert_exact(answer)
    assert answer.policy_versions == [
        sum(number <= index for number in before) for index in range(LENGTH)
    ]
    assert engine.sampled == LENGTH  # no work is lost
    starts = [len(body["token_ids"]) - len(PROMPT) for body in engine.requests]
    assert starts == [0, *sorted(before)]
    asked = [body["sampling_params"] for body in engine.requests]
    assert [one["max_tokens"] for one in asked] == [LENGTH - start for start in starts]
    assert len({one["seed"] for one in asked}) == len(set(starts))


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES)
async def test_calls_in_flight_continue_with_new_weights(release: tuple[int, int]) -> None:
    engine = OldVllm(release)
    engine.step_s = 0.01
    async with known_backend(engine) as backend:
        calls = [asyncio.create_task(ask(backend, seed=seed)) for seed in range(8)]
        await condition(lambda: len(engine.requests) == 8)
        sampled = engine.sampled
        await condition(lambda: engine.sampled >= sampled + 2 * 8)
        await load(backend, 3)
        answers = await asyncio.gather(*calls)
        assert (await backend.describe()).policy_version == 3
        later = await ask(backend)
    for answer in answers:
        assert_exact(answer)
        assert set(answer.policy_versions) == {0, 3}
    assert_exact(later)
    assert set(later.policy_versions) == {3}
    assert set(engine.paused_for) == {"abort"}


@pytest.mark.slow
async def test_a_call_scheduled_during_the_pause_uses_the_new_weights() -> None:
    engine = OldVllm((0, 24))
    engine.arrives_after_s = 0.5
    async with known_backend(engine) as backend:
        call = asyncio.create_task(ask(backend))
        await condition(lambda: len(engine.requests) == 1)
        await load(backend, 1)
        answer = await call
    assert_exact(answer)
    assert set(answer.policy_versions) == {1}
    assert len(engine.paused_for) > 1  # the first pause did not find the call
    assert [body["sampling_params"]["seed"] for body in engine.requests] == [7, 7]


async def test_unseeded_calls_continue_unseeded() -> None:
    engine = OldVllm((0, 24))
    async with known_backend(engine) as backend:
        updater = Updater(engine, backend, [10])
        assert_exact(await ask(backend, seed=None))
        await asyncio.gather(*updater.updates)
    assert [body["sampling_params"]["seed"] for body in engine.requests] == [None, None]


async def test_an_abort_by_others_is_passed_on() -> None:
    engine = OldVllm((0, 31))
    async with known_backend(engine) as backend:
        call = asyncio.create_task(ask(backend))
        await condition(lambda: len(engine.requests) == 1)
        await backend.http.tell("/pause?mode=abort")
        assert (await call).finish_reason == "abort"


# --- restarts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("release", RELEASES)
async def test_an_engine_that_was_restarted_has_lost_its_weights(release: tuple[int, int]) -> None:
    engine = OldVllm(release)
    async with known_backend(engine) as backend:
        await load(backend, 4)
        assert (await backend.describe()).policy_version == 4
        engine.restart()
        with pytest.raises(BackendUnavailable, match="weights default, not 4"):
            await ask(backend)
        assert (await backend.describe()).policy_version is None
        answer = await ask(backend)
    assert set(answer.policy_versions) == {0}


@pytest.mark.parametrize("release", [(0, 27), (0, 31)])
async def test_an_update_by_others_is_noticed(release: tuple[int, int]) -> None:
    engine = OldVllm(release)
    async with known_backend(engine) as backend:
        engine.weights, engine.label = "5", "5"
        with pytest.raises(BackendUnavailable, match="weights 5, not default"):
            await ask(backend)
        await backend.describe()
        answer = await ask(backend)
    assert_exact(answer)
    assert set(answer.policy_versions) == {5}


@pytest.mark.parametrize("release", UNLABELLED)
async def test_an_engine_without_labels_cannot_be_updated_by_others(
    release: tuple[int, int], tmp_path: Path
) -> None:
    async with OldVllm(release) as engine, BackendPool(tmp_path) as pool:
        with pytest.raises(BackendRejected, match=r"needs vLLM 0\.27"):
            await pool.add(BackendSpec(url=engine.url, tokenizer="/m", policy_version=1))


async def test_a_failed_update_leaves_no_call_waiting() -> None:
    engine = OldVllm((0, 24))
    async with known_backend(engine) as backend:
        await load(backend, 1)
        engine.fails_to_load = True
        with pytest.raises(BackendError, match="lost its weights"):
            await load(backend, 2)
        engine.fails_to_load = False
        waiting = asyncio.create_task(ask(backend))
        await load(backend, 3)
        assert set((await waiting).policy_versions) == {3}


# --- in the pool --------------------------------------------------------------------------------


@pytest.fixture
def config() -> PoolConfig:
    return PoolConfig(probe_interval_s=0.1, wait_for_backend_s=10)


@pytest.mark.slow
@pytest.mark.parametrize("release", [(0, 24), (0, 31)])
async def test_rollouts_are_not_charged_for_an_update_and_survive_a_restart(
    release: tuple[int, int], tmp_path: Path, tiny_model: Path, config: PoolConfig
) -> None:
    engine = OldVllm(release)
    engine.step_s, engine.load_s = 0.01, 0.5
    async with engine, BackendPool(tmp_path / "spool", config) as pool:
        await pool.add(BackendSpec(url=engine.url, tokenizer=str(tiny_model)))
        clock = WorkClock()
        with pool.session("r", clock) as session:

            async def turn() -> Generation:
                return await session.generate(
                    PROMPT, sampling=Sampling(), max_tokens=LENGTH, seed=1, stop_token_ids=[]
                )

            call = asyncio.create_task(turn())
            await condition(lambda: engine.sampled > 0)
            checkpoint = tmp_path / "1"
            checkpoint.mkdir()
            (checkpoint / "model.safetensors").touch()
            await pool.weights.load(WeightDirectory(str(checkpoint)))
            first = await call
            assert set(first.policy_versions) == {0, 1}
            assert clock.waited_s > engine.load_s

            engine.restart()  # no probe has seen it yet
            second = await turn()
            assert set(second.policy_versions) == {1}
            assert engine.weights == str(checkpoint)
        assert [status.state for status in pool.statuses()] == [BackendState.HEALTHY]


# --- refusals -----------------------------------------------------------------------------------


async def test_a_vllm_that_is_too_old_is_refused_by_its_version() -> None:
    with pytest.raises(BackendRejected, match=r"vLLM 0\.21 is outside the tested range, >=0\.22"):
        async with known_backend(OldVllm((0, 21))):
            pass


@pytest.mark.parametrize("release", [(0, 33), (0, 99)])
async def test_a_vllm_that_is_newer_than_the_tested_ones_joins_with_one_warning(
    release: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    async with known_backend(OldVllm(release)) as backend:
        for _ in range(2):
            await backend.describe()
    said = [one.message for one in caplog.records if "outside the tested range" in one.message]
    assert len(said) == (release == (0, 99))
    assert all(f"{backend.url}: vLLM 0.99 is" in one for one in said)


@pytest.mark.parametrize("release", [(0, 31), (0, 32)])
async def test_a_vllm_without_its_flag_is_refused_by_the_flag(release: tuple[int, int]) -> None:
    with pytest.raises(BackendRejected, match="start vLLM with --enable-scale-out"):
        async with known_backend(OldVllm(release, has_scale_out=False)):
            pass


@pytest.mark.parametrize("release", [(0, 22), (0, 31)])
async def test_a_vllm_that_was_not_tested_with_pictures_refuses_them(
    release: tuple[int, int],
) -> None:
    engine = OldVllm(release)
    async with known_backend(engine) as backend:
        call = EngineCall(EncodedPrompt(PROMPT), Sampling(), LENGTH, 7, "r", pictures=[b"one"])
        with pytest.raises(BackendRejected, match=f"{engine.url} takes no pictures") as refused:
            await backend.generate(call)
    assert refused.value.hint == "vLLM 0.32 and the reference engine do"
    assert not engine.requests


async def test_a_new_vllm_must_report_its_versions() -> None:
    async with known_backend(OldVllm((0, 32))) as backend:
        with pytest.raises(BackendError, match="weight_versions"):
            await ask(backend)


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("0.31.0", (0, 31)),
        ("0.24.1rc2", (0, 24)),
        ("0.27.1+cpu", (0, 27)),
        ("1.0", (1, 0)),
        ("0.1.dev1+g1234567", None),
        ("dev", None),
    ],
)
def test_releases_are_read(version: str, release: tuple[int, int] | None) -> None:
    assert release_of(version) == release
