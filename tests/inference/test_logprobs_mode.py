"""Modes of engines' logprobs: said, or shown by a probe; refused if training cannot use them."""

import json
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from prorl_service.errors import BackendRejected
from prorl_service.inference.engines import logprobs
from prorl_service.inference.pool import BackendPool, PoolConfig
from prorl_service.schemas import BackendSpec, Turn, logprobs_mode_of
from prorl_service.testing import StubEngine
from prorl_service.testing.loopback import Handler
from tests.inference.pools import generate

VOCABULARY = 300


class Sampling:
    """A model of random logits, its temperature and the mode of its logprobs; `scale` says how
    certain it is of its tokens."""

    def __init__(self, mode: str, scale: float, seed: int) -> None:
        self.mode, self.scale, self.random = mode, scale, Random(seed)

    def logprob(self, temperature: float) -> float:
        logits = [self.random.gauss(0, self.scale) for _ in range(VOCABULARY)]
        scaled = _log_softmax([one / temperature for one in logits])
        chosen = self.random.choices(range(VOCABULARY), [math.exp(one) for one in scaled])[0]
        by_mode = {
            "processed_logprobs": scaled,
            "raw_logprobs": _log_softmax(logits),
            "raw_logits": logits,
            "processed_logits": [one / temperature for one in logits],
        }
        return by_mode[self.mode][chosen]

    async def ask(self, _: list[int], temperature: float) -> list[float]:
        return [self.logprob(temperature) for _ in range(logprobs.PROBED_TOKENS)]


def _log_softmax(logits: list[float]) -> list[float]:
    most = max(logits)
    norm = most + math.log(sum(math.exp(one - most) for one in logits))
    return [one - norm for one in logits]


@pytest.mark.parametrize("scale", [0.5, 2.0, 5.0, 100.0])
@pytest.mark.parametrize("seed", range(5))
async def test_no_probe_takes_an_unfit_mode_for_the_right_one(scale: float, seed: int) -> None:
    right = Sampling("processed_logprobs", scale, seed)
    assert await logprobs.probed("url", right.ask, VOCABULARY, "") in ("processed", "unknown")
    for mode in ("raw_logprobs", "raw_logits", "processed_logits"):
        seen: str
        try:
            ask = Sampling(mode, scale, seed).ask
            seen = await logprobs.probed("url", ask, VOCABULARY, "what to do")
        except BackendRejected as error:
            seen = error.hint
        is_refused = seen == "what to do"
        assert is_refused or (seen, scale) == ("unknown", 100.0)


@pytest.mark.parametrize("scale", [2.0, 5.0, 100.0])
async def test_a_probe_shows_the_right_mode_whether_the_model_is_certain_or_not(
    scale: float,
) -> None:
    for seed in range(20):
        ask = Sampling("processed_logprobs", scale, seed).ask
        assert await logprobs.probed("url", ask, VOCABULARY, "") == "processed"


async def test_tokens_of_equal_likelihood_are_no_proof() -> None:
    async def ask(_: list[int], temperature: float) -> list[float]:
        return [-math.log(2)] * logprobs.PROBED_TOKENS

    assert await logprobs.probed("url", ask, VOCABULARY, "") == "unknown"


class Vllm(StubEngine):
    """Answers as vLLM 0.32 with a mode; `has_server_info`: in its development mode."""

    def __init__(self, model: Path, sampling: Sampling, *, has_server_info: bool) -> None:
        super().__init__(model, lambda _: [5] * logprobs.PROBED_TOKENS)
        self.sampling, self.has_server_info = sampling, has_server_info
        self.temperature = 1.0
        self.logprob = lambda _: self.sampling.logprob(self.temperature)

    def routes(self) -> Mapping[str, Handler]:
        routes = {**super().routes(), "/version": self._version}
        return {**routes, "/server_info": self._server_info} if self.has_server_info else routes

    async def _version(self, _: Request) -> Response:
        return JSONResponse({"version": "0.32.0"})

    async def _server_info(self, _: Request) -> Response:
        model = {"dtype": "torch.bfloat16", "logprobs_mode": self.sampling.mode}
        return JSONResponse({"vllm_config": {"model_config": model}})

    async def _models(self, request: Request) -> Response:
        answer = json.loads(bytes((await super()._models(request)).body))
        del answer["data"][0]["logprobs_mode"]
        answer["data"][0]["owned_by"] = "vllm"
        return JSONResponse(answer)

    async def _generate(self, request: Request) -> Response:
        body = await request.json()
        if not body:
            return JSONResponse({"error": {"message": "Field required"}}, status_code=400)
        self.temperature = body["sampling_params"]["temperature"]
        return await super()._generate(request)


@asynccontextmanager
async def pool_with(
    tiny_model: Path, spool: Path, sampling: Sampling, *, has_server_info: bool
) -> AsyncIterator[tuple[BackendPool, Vllm]]:
    engine = Vllm(tiny_model, sampling, has_server_info=has_server_info)
    async with engine, BackendPool(spool, PoolConfig(probe_interval_s=0.05)) as pool:
        yield pool, engine


@pytest.mark.parametrize("has_server_info", [True, False])
async def test_an_engine_with_raw_logprobs_is_refused_with_the_flag(
    tiny_model: Path, tmp_path: Path, has_server_info: bool
) -> None:
    sampling = Sampling("raw_logprobs", 2.0, 0)
    async with pool_with(tiny_model, tmp_path, sampling, has_server_info=has_server_info) as (
        pool,
        engine,
    ):
        with pytest.raises(BackendRejected, match="raw") as caught:
            await pool.add(BackendSpec(url=engine.url), must_answer=False)
        assert "--logprobs-mode processed_logprobs" in caught.value.hint
        assert pool.statuses() == []
        assert engine.calls == (0 if has_server_info else 1)


@pytest.mark.parametrize("has_server_info", [True, False])
async def test_the_mode_that_was_seen_is_said_of_each_generation(
    tiny_model: Path, tmp_path: Path, has_server_info: bool
) -> None:
    sampling = Sampling("processed_logprobs", 2.0, 0)
    async with pool_with(tiny_model, tmp_path, sampling, has_server_info=has_server_info) as (
        pool,
        engine,
    ):
        await pool.add(BackendSpec(url=engine.url))
        with pool.session("r") as generator:
            assert (await generate(generator)).logprobs_mode == "processed"


async def test_an_engine_whose_mode_no_prompt_shows_is_used_with_one_warning(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sampling = Sampling("raw_logprobs", 1e4, 0)
    async with pool_with(tiny_model, tmp_path, sampling, has_server_info=False) as (pool, engine):
        await pool.add(BackendSpec(url=engine.url))
        engine.status = 503
        while pool.statuses()[0].state != "down":
            await pool._dispatch.changes.wait()
        engine.status = 200
        await pool.until_serving()
        with pool.session("r") as generator:
            assert (await generate(generator)).logprobs_mode == "unknown"
    assert sum("may not be of the distribution" in one.message for one in caplog.records) == 1


def test_a_trajectory_is_known_only_if_all_its_turns_are() -> None:
    known = Turn(segment=0, start=0, stop=1, text="", finish_reason="stop", model_s=0, backend="a")
    unknown = known.model_copy(update={"logprobs_mode": "unknown"})
    assert logprobs_mode_of([known, known]) == "processed"
    assert logprobs_mode_of([known, unknown]) == "unknown"
    assert Turn.model_validate_json(unknown.model_dump_json()) == unknown
