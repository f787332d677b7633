"""Gateway that offers a trainer's engines to the service as one backend, with an engine's routes.

Token ids in, token ids out. The trainer updates the weights: this backend reports their version,
and takes none. Each request needs the key that the service was given, even on loopback, which other
users of the machine reach, too. Knows no trainer. Needs uvicorn and Starlette, which plug-ins that
use it require.
"""

import asyncio
import base64
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hmac import compare_digest
from itertools import groupby
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from prorl_service.errors import BackendError, BackendLent
from prorl_service.net.asgi_server import AsgiServer

LENT = "EngineLent"
"""Type of error that makes the service repeat the call when the engines are back, at no cost to the
rollout's budget."""
MAX_BODY_BYTES = 64 * 2**20


class AskedSampling(BaseModel):
    """Sampling parameters of a call, by vLLM's names. `top_k` 0: all tokens."""

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


class _ShownPicture(BaseModel):
    type: Literal["image_url"]
    url: str

    @property
    def content(self) -> bytes:
        return base64.b64decode(self.url.partition(",")[2])


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")

    token_ids: list[int] = Field(min_length=1)
    content_parts: list[_ShownPicture] = []
    return_token_ids: bool = False
    sampling_params: AskedSampling


@dataclass(slots=True)
class Completion:
    """Sampled tokens: lists of one length. `cached_tokens` are of the first call's prompt."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    finish_reason: Literal["stop", "length"] = "stop"


class TrainersEngines(Protocol):
    """Engines of a trainer; belong to the gateway's event loop."""

    problem: str
    """Why they do not sample; "" if they do."""

    @property
    def version(self) -> int:
        """Newest version that has sampled."""

    @property
    def is_lent(self) -> bool:
        """True while the trainer needs them for something else."""

    def expanded(self, prompt: list[int], pictures: Sequence[bytes]) -> list[int]:
        """Returns the prompt as the trainer's model sees it, whose placeholders are these pictures.
        Raises `BackendError`."""

    async def sample(
        self,
        session_id: str,
        prompt: list[int],
        asked: AskedSampling,
        pictures: Sequence[bytes] = (),
    ) -> Completion:
        """Samples at most `asked.max_tokens`, for which there is room. If cancelled, ends the call.
        Raises `BackendError`: `BackendLent` if the call is to be repeated when they are back."""


class Gateway(AsgiServer):
    """HTTP server; `start` it in the event loop of `engines`."""

    def __init__(
        self,
        engines: TrainersEngines,
        *,
        model: str,
        root: str,
        max_model_len: int,
        api_key: str,
        logprobs_mode: str | None = None,
    ) -> None:
        """`model`: name under which it appears; `root`: where the service finds the tokenizer.
        `api_key`: the bearer token of each request. `logprobs_mode`: by vLLM's name, if known."""
        self._engines = engines
        super().__init__(self._serve)
        self._authorization = f"Bearer {api_key}".encode()
        self._max_model_len = max_model_len
        self._model = {
            "id": model,
            "root": root,
            "max_model_len": max_model_len,
            "owned_by": "trainer",
            "logprobs_mode": logprobs_mode,
        }

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if not compare_digest(given, self._authorization):
            response = _refusal(
                401, "this engine belongs to a training run; send its key", "AuthenticationError"
            )
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
                problem = self._engines.problem
                return _refusal(503, problem) if problem else Response()
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
        asked, pictures = body.sampling_params, [one.content for one in body.content_parts]
        try:
            seen = self._engines.expanded(body.token_ids, pictures) if pictures else body.token_ids
            room = self._max_model_len - len(seen)
            if room < 1:
                return _refusal(400, f"{len(seen)} tokens leave no room in the context")
            asked.max_tokens = min(asked.max_tokens, room)
            completion = await self._engines.sample(session_id, body.token_ids, asked, pictures)
        except BackendError as error:
            kind = LENT if isinstance(error, BackendLent) else ""
            return _refusal(error.answer_status, str(error), kind)
        told = {"prompt_token_ids": seen} if body.return_token_ids else {}
        return JSONResponse(_answer(len(seen), completion) | told)


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


def _refusal(status: int, message: str, kind: str = "") -> Response:
    error = {"message": message, "type": kind or "BadRequestError", "code": status}
    return JSONResponse({"error": error}, status)
