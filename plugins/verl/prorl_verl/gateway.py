"""Gateway that offers a trainer's engines to the service as one backend, with an engine's routes.

Token ids in, token ids out; VeRL's router picks the engine for each turn. VeRL updates the weights:
this backend reports its version, and takes no weights. Each request needs the key that the service
was given, even on loopback, which other users of the machine reach, too.
"""

from collections.abc import Awaitable, Callable
from hmac import compare_digest
from itertools import groupby
from typing import Any

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from prorl_verl.engines import Completion, Engines, EnginesLent

KINDS = {401: "AuthenticationError", 503: "EngineLent"}
"""Types of errors. `EngineLent` makes the service repeat the call when the engines are back, at no
cost to the rollout's budget."""
MAX_BODY_BYTES = 64 * 2**20
SEED_NAMES = {"sglang": "sampling_seed"}
"""Name of the seed among an engine's sampling parameters, where it is not `seed`."""


class _Sampling(BaseModel):
    model_config = ConfigDict(extra="forbid")

    max_tokens: int = Field(ge=1)
    temperature: float
    top_p: float
    top_k: int
    seed: int | None = None
    stop_token_ids: list[int] = []
    stop: list[str] = []
    logprobs: int = 0
    detokenize: bool = False


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")

    token_ids: list[int] = Field(min_length=1)
    sampling_params: _Sampling


class Gateway:
    """HTTP server; `start` it in the event loop of `engines`."""

    def __init__(
        self,
        engines: Engines,
        *,
        model: str,
        root: str,
        max_model_len: int,
        api_key: str,
        engine: str = "vllm",
    ) -> None:
        """`model`: name under which it appears; `root`: where the service finds the tokenizer.
        `api_key`: the bearer token of each request. `engine`: VeRL's name of the engines' kind."""
        self._engines = engines
        self._authorization = f"Bearer {api_key}".encode()
        self._max_model_len = max_model_len
        self._seed_name = SEED_NAMES.get(engine, "seed")
        self._model = {
            "id": model,
            "root": root,
            "max_model_len": max_model_len,
            "owned_by": "verl",
        }

    async def start(self, host: str, port: int) -> int:
        """Returns the port that it listens on."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._authorize])
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/weight_info", self._weight_info)
        app.router.add_get("/is_paused", self._is_paused)
        app.router.add_post("/inference/v1/generate", self._generate)
        # A client that goes away cancels its call.
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        await self._runner.cleanup()

    @web.middleware
    async def _authorize(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if not compare_digest(given, self._authorization):
            return _refusal(401, "this engine belongs to a training run; send its key")
        return await handler(request)

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [self._model]})

    async def _weight_info(self, _: web.Request) -> web.Response:
        return web.json_response({"weight_version": str(self._engines.version)})

    async def _is_paused(self, _: web.Request) -> web.Response:
        is_lent = self._engines.is_lent
        return web.json_response({"is_paused": is_lent, "is_lent": is_lent})

    async def _generate(self, request: web.Request) -> web.Response:
        try:
            body = _Request.model_validate_json(await request.read())
        except ValidationError as error:
            return _refusal(400, str(error))
        room = self._max_model_len - len(body.token_ids)
        if room < 1:
            return _refusal(400, f"{len(body.token_ids)} tokens leave no room in the context")
        asked = body.sampling_params
        try:
            completion = await self._engines.generate(
                request.headers["X-Session-ID"],
                body.token_ids,
                _params(asked, self._seed_name),
                min(asked.max_tokens, room),
            )
        except EnginesLent:
            return _refusal(503, "the trainer needs the engines for a while")
        return web.json_response(_answer(len(body.token_ids), completion))


def _params(asked: _Sampling, seed_name: str) -> dict[str, Any]:
    """Returns sampling parameters as VeRL's agent loops give them."""
    params = {
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "top_k": asked.top_k or -1,
        "repetition_penalty": 1.0,
        "logprobs": True,
        "stop_token_ids": asked.stop_token_ids,
    }
    wishes = {seed_name: asked.seed, "stop": asked.stop or None}
    return params | {name: value for name, value in wishes.items() if value is not None}


def _answer(prompt_tokens: int, completion: Completion) -> dict[str, Any]:
    ids = completion.token_ids
    pairs = zip(ids, completion.logprobs, strict=True)
    content = [{"token_id": token, "logprob": logprob} for token, logprob in pairs]
    return {
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": len(ids),
            "prompt_tokens_details": {"cached_tokens": completion.cached_tokens},
        },
        "choices": [
            {
                "index": 0,
                "finish_reason": completion.finish_reason,
                "token_ids": ids,
                "logprobs": {"content": content},
                "weight_versions": _spans(completion.versions),
            }
        ],
    }


def _spans(versions: list[int]) -> list[dict[str, Any]]:
    """Returns [start, end) of the tokens that each version sampled."""
    spans: list[dict[str, Any]] = []
    for version, run in groupby(versions):
        start = spans[-1]["end"] if spans else 0
        spans.append({"version": str(version), "start": start, "end": start + len(list(run))})
    return spans


def _refusal(status: int, message: str) -> web.Response:
    kind = KINDS.get(status, "BadRequestError")
    error = {"message": message, "type": kind, "code": status}
    return web.json_response({"error": error}, status=status)
