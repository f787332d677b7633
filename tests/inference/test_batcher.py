"""The batcher and its parts, on a real model within the test's own process."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import httpx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prorl_service.inference.base import Generation
from prorl_service.inference.reference_engine.app import Callers, EngineState, create_app
from prorl_service.inference.reference_engine.batcher import MAX_STEP_TOKENS, Batcher, EngineDead
from prorl_service.inference.reference_engine.batcher import Sequence as TokenSequence
from prorl_service.inference.reference_engine.checkpoints import Served
from prorl_service.inference.reference_engine.kv import KVCache, KVLayout, KVPool
from prorl_service.inference.reference_engine.model import Chunk, PackedModel
from prorl_service.inference.reference_engine.sampling import DrawParams, sample
from tests.inference.contract import TIMEOUT_S, TOLERANCE, error, prompt


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> PackedModel:
    return PackedModel(tiny_model, torch.float32)


def sequence(
    prompt_ids: list[int], max_tokens: int, *, session_id: str | None = None
) -> TokenSequence:
    params = DrawParams(temperature=1.0, top_p=1.0, top_k=0)
    return TokenSequence(prompt_ids, max_tokens, params, Random(0), frozenset(), session_id)


@asynccontextmanager
async def running(batcher: Batcher) -> AsyncIterator[Batcher]:
    loop = asyncio.create_task(batcher.run())
    async with asyncio.timeout(TIMEOUT_S):
        yield batcher
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)


def is_exact(checkpoint: Path, done: TokenSequence) -> bool:
    answer = Generation(done.output_ids, done.logprobs, [], "length", 0, "")
    return error(checkpoint, done.prompt_ids, answer) < TOLERANCE


# --- scheduling ---------------------------------------------------------------------------------


async def test_prompts_longer_than_a_step_are_exact(model: PackedModel, tiny_model: Path) -> None:
    sequences = [sequence(prompt(length), 8) for length in (MAX_STEP_TOKENS + 900, 5, 700)]
    async with running(Batcher(model, kv_tokens=10_000)) as batcher:
        await asyncio.gather(*map(batcher.generate, sequences))
    assert all(is_exact(tiny_model, done) for done in sequences)


async def test_sequences_wait_for_room_in_order(model: PackedModel, tiny_model: Path) -> None:
    sequences = [sequence(prompt(30), 20, session_id=str(n)) for n in range(9)]
    finished: list[TokenSequence] = []

    async def generate(one: TokenSequence) -> None:
        await batcher.generate(one)
        finished.append(one)

    async with running(Batcher(model, kv_tokens=120)) as batcher:
        await asyncio.gather(*map(generate, sequences))
    assert finished == sequences
    assert all(is_exact(tiny_model, done) for done in sequences)


async def test_finished_turns_give_way_to_new_sequences(
    model: PackedModel, tiny_model: Path
) -> None:
    first = sequence(prompt(30), 10, session_id="a")
    async with running(Batcher(model, kv_tokens=100)) as batcher:
        await batcher.generate(first)
        other = sequence(prompt(60), 40, session_id="b")
        await batcher.generate(other)
        again = sequence([*first.token_ids, 1, 2], 10, session_id="a")
        await batcher.generate(again)
    assert (again.cached_tokens, again.finish_reason) == (0, "length")
    assert is_exact(tiny_model, again)


async def test_a_session_whose_history_changed_reuses_what_is_the_same(
    model: PackedModel, tiny_model: Path
) -> None:
    first = sequence(prompt(30), 10, session_id="a")
    other = sequence([*first.token_ids[:-5], 1, 2, 3, 4, 5, 6], 10, session_id="a")
    async with running(Batcher(model, kv_tokens=1000)) as batcher:
        await batcher.generate(first)
        await batcher.generate(other)
    assert other.cached_tokens == len(first.prompt_ids) - 5
    assert is_exact(tiny_model, other)


async def test_first_tokens_that_sequences_share_are_computed_once(
    model: PackedModel, tiny_model: Path
) -> None:
    system = prompt(100)
    groups = [[*system, *[number] * 40] for number in (5, 6, 7)]
    sequences = [sequence(one, 5) for one in groups for _ in range(4)]
    batcher = Batcher(model, kv_tokens=4000)
    async with running(batcher):
        await asyncio.gather(*map(batcher.generate, sequences))
    computed = batcher.counters.prompt_tokens - batcher.counters.cached_tokens
    assert computed == 100 + 3 * 40 + 3 * 3  # the last token of each copy is computed
    assert all(is_exact(tiny_model, done) for done in sequences)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(st.integers(0, 120), st.integers(1, 60), st.integers(0, 2), st.booleans()),
        min_size=1,
        max_size=12,
    )
)
async def test_whatever_sequences_share_their_logprobs_are_exact(
    model: PackedModel, tiny_model: Path, shapes: list[tuple[int, int, int, bool]]
) -> None:
    sequences = [
        sequence([*prompt(shared), *[number] * own], 3, session_id="a" if is_session else None)
        for shared, own, number, is_session in shapes
    ]
    async with running(Batcher(model, kv_tokens=400)) as batcher:
        await asyncio.gather(*map(batcher.generate, sequences))
    assert all(is_exact(tiny_model, done) for done in sequences)


# --- death --------------------------------------------------------------------------------------


class FailingModel(PackedModel):
    """A model that fails at its third forward pass."""

    passes = 0

    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        self.passes += 1
        if self.passes > 3:  # the first is made when the model loads
            raise RuntimeError("no memory")
        return super().forward(chunks)


async def test_a_dead_engine_answers_everyone_and_stops(tiny_model: Path) -> None:
    model = FailingModel(tiny_model, torch.float32)
    batcher, stopped = Batcher(model, kv_tokens=1000), asyncio.Event()
    engine = EngineState(batcher, "tiny", tiny_model, "float32", 500, Served(model.module))
    app = create_app(engine, Callers(allowed_hosts=["engine"]), on_death=stopped.set)
    transport = httpx.ASGITransport(app)
    params = {"max_tokens": 50, "ignore_eos": True}  # else a call may end before the engine dies
    body = {"token_ids": [1, 2], "sampling_params": params}
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://engine") as http,
    ):
        assert (await http.get("/health")).status_code == 200
        calls = (http.post("/inference/v1/generate", json=body) for _ in range(3))
        responses = await asyncio.gather(*calls)
        async with asyncio.timeout(TIMEOUT_S):
            await stopped.wait()
        responses.append(await http.post("/inference/v1/generate", json=body))
        assert (await http.get("/health")).status_code == 503
    assert [response.status_code for response in responses] == [500] * 4
    assert "no memory" in responses[0].json()["error"]["message"]
    with pytest.raises(EngineDead):
        await batcher.generate(sequence([1], 1))


async def test_a_swap_that_fails_half_way_ends_the_engine(model: PackedModel) -> None:
    def change() -> None:
        raise RuntimeError("half-way")

    batcher = Batcher(model, kv_tokens=1000)
    async with running(batcher):
        call = asyncio.create_task(batcher.generate(sequence([1], 900)))
        with pytest.raises(RuntimeError, match="half-way"):
            await batcher.change_weights(change)
        with pytest.raises(EngineDead, match="half-way"):
            await call


# --- sampling -----------------------------------------------------------------------------------


def test_draws_follow_the_distribution() -> None:
    probabilities = torch.tensor([0.5, 0.0, 0.25, 0.125, 0.125])
    uniforms = [(step + 0.5) / 64 for step in range(64)]
    params = [DrawParams(1.0, 1.0, 0)] * 64
    ids, logprobs = sample(probabilities.log().expand(64, -1), params, uniforms)
    assert [ids.count(token) for token in range(5)] == [32, 0, 16, 8, 8]
    assert logprobs == pytest.approx([float(probabilities[token].log()) for token in ids])


def test_rows_have_their_own_parameters() -> None:
    logits = torch.tensor([3.0, 2.0, 1.0, 0.0]).repeat(4, 1)
    params = [
        DrawParams(0.0, 0.1, 1),
        DrawParams(0.5, 1.0, 0),
        DrawParams(1.0, 1.0, 2),
        DrawParams(1.0, 0.7, 0),
    ]
    ids, logprobs = sample(logits, params, [0.999999] * 4)
    assert ids == [0, 3, 1, 1]
    kept = torch.tensor([3.0, 2.0]).log_softmax(0)[1]
    expected = [logits[0].log_softmax(0)[0], (logits[0] / 0.5).log_softmax(0)[3], kept, kept]
    assert logprobs == pytest.approx([float(one) for one in expected])


def test_logprobs_that_are_not_numbers_are_marked() -> None:
    logits = torch.tensor([[float("nan")] * 3])
    _, logprobs = sample(logits, [DrawParams(1.0, 1.0, 0)], [0.5])
    assert logprobs == [-9999.0]


# --- room ---------------------------------------------------------------------------------------


def test_a_pool_gets_back_all_the_room_it_gave() -> None:
    pool = KVPool(KVLayout(layers=1, heads=1, head_dim=2, dtype=torch.float32), capacity=20)

    def take(capacity: int) -> KVCache | None:
        return pool.take(capacity, [1] * capacity)

    for _ in range(3):
        cache = take(15)
        assert cache
        assert take(6) is None
        cache.length = 9
        pool.keep(cache, [1] * 10, "a")
        known = pool.take(12, [1] * 11)
        assert known
        assert known.length == 9
        pool.release(known)
    pool.clear()
    assert take(20)
