"""Gateway that offers a trainer's engines to the service as one backend, with an engine's routes.

Token ids in, token ids out; VeRL's router picks the engine for each turn. VeRL updates the weights:
this backend reports its version, and takes no weights. Each request needs the key that the service
was given, even on loopback, which other users of the machine reach, too.
"""

import asyncio
from contextlib import suppress
from functools import partial
from hmac import compare_digest
from itertools import groupby
from typing import Any

import uvicorn
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from prorl_verl.engines import Completion, Engines, EnginesLent

KINDS = {401: "AuthenticationError", 503: "EngineLent"}
"""Types of errors. `EngineLent` makes the service repeat the call when the engines are back, at no
cost to the rollout's budget."""
MAX_BODY_BYTES = 64 * 2**20
KEEP_OPEN_S = 75
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
        self._state = ServerState()
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
        config = uvicorn.Config(
            self._serve,
            interface="asgi3",
            proxy_headers=False,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=KEEP_OPEN_S,
        )
        config.load()
        protocol: Any = config.http_protocol_class
        connection = partial(protocol, config=config, server_state=self._state, app_state={})
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(connection, host, port)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        self._server.close()
        tasks = list(self._state.tasks)
        for one in list(self._state.connections):
            one.transport.close()  # open calls notice
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if not compare_digest(given, self._authorization):
            response = _refusal(401, "this engine belongs to a training run; send its key")
        else:
            response = await self._until_gone(request)
        await response(scope, receive, send)

    async def _until_gone(self, request: Request) -> Response:
        """Answers, unless the client goes away meanwhile, which cancels its call."""
        body = bytearray()
        with suppress(ClientDisconnect):
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY_BYTES:
                    return _refusal(413, f"more than {MAX_BODY_BYTES} bytes")
        answer = asyncio.ensure_future(self._respond(request, bytes(body)))
        gone = asyncio.ensure_future(request.receive())
        try:
            await asyncio.wait([answer, gone], return_when=asyncio.FIRST_COMPLETED)
            return answer.result() if answer.done() else Response()
        finally:
            for task in (answer, gone):
                task.cancel()

    async def _respond(self, request: Request, body: bytes) -> Response:
        match request.url.path:
            case "/health":
                return Response()
            case "/v1/models":
                return JSONResponse({"data": [self._model]})
            case "/weight_info":
                return JSONResponse({"weight_version": str(self._engines.version)})
            case "/is_paused":
                is_lent = self._engines.is_lent
                return JSONResponse({"is_paused": is_lent, "is_lent": is_lent})
            case "/inference/v1/generate":
                return await self._generate(request.headers.get("X-Session-ID", ""), body)
        return _refusal(404, f"there is no {request.url.path}")

    async def _generate(self, session_id: str, content: bytes) -> Response:
        try:
            body = _Request.model_validate_json(content)
        except ValidationError as error:
            return _refusal(400, str(error))
        room = self._max_model_len - len(body.token_ids)
        if room < 1:
            return _refusal(400, f"{len(body.token_ids)} tokens leave no room in the context")
        asked = body.sampling_params
        try:
            completion = await self._engines.generate(
                session_id,
                body.token_ids,
                _params(asked, self._seed_name),
                min(asked.max_tokens, room),
            )
        except EnginesLent:
            return _refusal(503, "the trainer needs the engines for a while")
        return JSONResponse(_answer(len(body.token_ids), completion))


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


def _refusal(status: int, message: str) -> Response:
    kind = KINDS.get(status, "BadRequestError")
    error = {"message": message, "type": kind, "code": status}
    return JSONResponse({"error": error}, status)
