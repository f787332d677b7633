"""Servers for tests over real HTTP: an engine and a judge that answer what a test says.

Not used by the service itself.
"""

import asyncio
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from prorl_service.inference.engines.http import LENT, WEIGHTS_REJECTED
from prorl_service.inference.engines.logprobs import PROCESSED
from prorl_service.inference.engines.reference import OWNER
from prorl_service.inference.engines.versions import NEVER_UPDATED, version_of
from prorl_service.inference.engines.vllm_routes import GENERATE
from prorl_service.net.fetching import Fetches, Offer
from prorl_service.testing.loopback import Handler, Loopback


def safetensors(content: bytes) -> bytes:
    """Returns a safetensors file with one tensor, whose values are `content`."""
    tensor = {"dtype": "U8", "shape": [len(content)], "data_offsets": [0, len(content)]}
    header = json.dumps({"content": tensor}).encode()
    return len(header).to_bytes(8, "little") + header + content


def refusal(status: int, message: str = "stub", kind: str = "stub") -> JSONResponse:
    """Returns an engine's answer for a request that it does not serve."""
    return JSONResponse({"error": {"type": kind, "message": message}}, status)


Messages = list[dict[str, Any]]


class StubApi(Loopback):
    """An OpenAI-compatible endpoint over real HTTP; each reply is a function of the messages: a
    text, or the message's fields, with its `finish_reason` if that is another than "stop".

    `async with StubApi(...) as api`; its base URL is `api.url`, with or without /v1. The first
    calls fail with `statuses`, one each, and with `retry_after` if that is set; `latency_s` delays
    all calls. With an `api_key` it refuses calls without. `requests` are the bodies, `headers`
    their headers, `most_in_flight` is the peak of concurrent calls.
    """

    def __init__(
        self, reply: Callable[[Messages], str | Mapping[str, Any]], *, model: str = "stub"
    ) -> None:
        self.statuses: list[int] = []
        self.retry_after = ""
        self.latency_s = 0.0
        self.api_key: str | None = None
        self.requests: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self._reply_to = reply
        self._model = model

    def routes(self) -> Mapping[str, Handler]:
        own = {"/chat/completions": self._complete, "/models": self._listed}
        return own | {f"/v1{path}": handler for path, handler in own.items()}

    async def respond(self, request: Request) -> Response:
        given = request.headers.get("Authorization")
        if self.api_key is not None and given != f"Bearer {self.api_key}":
            return refusal(401, f"Incorrect API key provided: {given}", "invalid_request_error")
        return await super().respond(request)

    async def reply(self, body: Mapping[str, Any]) -> str | Mapping[str, Any]:
        """Returns the reply to a request. Raises `ValueError` to refuse it, with the reason."""
        return self._reply_to(body["messages"])

    async def _listed(self, request: Request) -> Response:
        return JSONResponse({"data": [{"id": self._model, "object": "model"}]})

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        self.headers.append(request.headers)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(self.latency_s)
        finally:
            self.in_flight -= 1
        if self.statuses:
            headers = {"Retry-After": self.retry_after} if self.retry_after else {}
            return Response("stub", self.statuses.pop(0), headers)
        try:
            reply = await self.reply(body)
        except ValueError as error:
            return refusal(400, str(error))
        message = {"content": reply} if isinstance(reply, str) else dict(reply)
        reason = message.pop("finish_reason", "stop")
        choice = {"message": {"role": "assistant", **message}, "finish_reason": reason}
        return JSONResponse({"choices": [choice]})


class StubJudge(StubApi):
    """A judge's endpoint."""


class StubEngine(Loopback):
    """The reference engine's routes over real HTTP; every answer is a function of the prompt.

    `async with StubEngine(...) as engine`. Set `status` to make every call fail with it
    (`generate_status`: only calls that generate), `latency_s` to delay calls, `version` or
    `model_id` to claim others, `logprob` to say how likely an id was. `calls` counts calls that
    generate, `in_flight` those that have not ended; `most_in_flight` is their peak. Like vLLM, it
    refuses calls whose prompt and `max_tokens` together exceed `max_model_len`. `weights` are the
    values of the file, or the directory, that it was given last, b"" at first. With
    `refuses_weights` it refuses weights like the reference engine; `update_latency_s` delays
    updates; with `is_elsewhere` it shares no file system with the service. With an `api_key` it
    refuses calls without the key, except to `/health`; `authorizations` are the headers seen.
    """

    def __init__(
        self,
        model: Path,
        answer: Callable[[list[int]], Sequence[int]],
        *,
        latency_s: float = 0.0,
        max_model_len: int = 4096,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        """`port` 0: any free one."""
        self.host, self.port = host, port
        self.latency_s = latency_s
        self.update_latency_s = 0.0
        self.status = 200
        self.generate_status = 200
        self.api_key: str | None = None
        self.authorizations: set[str | None] = set()
        self.refuses_weights = False
        self.is_elsewhere = False
        self.weights: bytes | str = b""
        self.label = NEVER_UPDATED
        self.model_id = "stub"
        self.logprob: Callable[[int], float] = lambda _: -0.5
        self.calls = 0
        self.in_flight = 0
        self.most_in_flight = 0
        self._model = model
        self._answer_to = answer
        self._max_model_len = max_model_len
        self._fetched = b""
        self._fetches = Fetches()
        self._running = asyncio.Event()
        self._running.set()
        self._is_lent = False
        self._sampling: set[asyncio.Future[None]] = set()

    async def __aexit__(self, *exc_info: object) -> None:
        await super().__aexit__(*exc_info)
        self._fetches.close()

    def lend(self) -> None:
        """Fails calls as lent, like a gateway to a trainer's engines while it trains."""
        self._is_lent = True
        for sampling in self._sampling:
            sampling.cancel()

    def take_back(self) -> None:
        self._is_lent = False

    def restart(self) -> None:
        """Serves as after a crash, with its initial weights."""
        self.label, self.weights = NEVER_UPDATED, b""
        self._fetches.close()
        self._running.set()

    def routes(self) -> Mapping[str, Handler]:
        return {
            "/v1/models": self._models,
            "/weight_info": self._weight_info,
            "/is_paused": self._is_paused,
            GENERATE: self._generate,
            "/pause": self._pause,
            "/resume": self._resume,
            "/init_weight_transfer_engine": self._fetch,
            "/start_weight_update": self._nothing,
            "/update_weights": self._update_weights,
            "/finish_weight_update": self._nothing,
            "/collective_rpc": self._collective_rpc,
            "/update_weight_version": self._update_weight_version,
        }

    async def respond(self, request: Request) -> Response:
        given = request.headers.get("Authorization")
        self.authorizations.add(given)
        if request.url.path == "/health":
            return Response(status_code=self.status)
        if self.api_key is not None and given != f"Bearer {self.api_key}":
            return refusal(401, f"Incorrect API key provided: {given}", "Unauthorized")
        return await super().respond(request)

    async def _nothing(self, request: Request) -> Response:
        return JSONResponse({})

    async def _models(self, request: Request) -> Response:
        model = {
            "id": self.model_id,
            "root": str(self._model),
            "max_model_len": self._max_model_len,
            "owned_by": OWNER,
            "logprobs_mode": PROCESSED,
        }
        return JSONResponse({"data": [model]})

    async def _weight_info(self, request: Request) -> Response:
        return JSONResponse({"weight_version": self.label})

    @property
    def version(self) -> int | None:
        return version_of(self.label)

    @version.setter
    def version(self, version: int) -> None:
        self.label = str(version)

    async def _is_paused(self, request: Request) -> Response:
        is_paused = self._is_lent or not self._running.is_set()
        return JSONResponse({"is_paused": is_paused, "is_lent": self._is_lent})

    async def _pause(self, request: Request) -> Response:
        self._running.clear()
        return JSONResponse({})

    async def _resume(self, request: Request) -> Response:
        self._running.set()
        return JSONResponse({})

    async def _fetch(self, request: Request) -> Response:
        if self.refuses_weights:
            await asyncio.sleep(self.update_latency_s)
            return refusal(400, kind=WEIGHTS_REJECTED)
        info = (await request.json())["init_info"]
        path = Path("/elsewhere", Path(info["path"]).name) if self.is_elsewhere else info["path"]
        offer = Offer(str(path), info["size"], info["url"], info["base"])
        self._fetched = await asyncio.to_thread(self._read, offer)
        return JSONResponse({})

    def _read(self, offer: Offer) -> bytes:
        self._fetches.begin(offer)
        return os.pread(self._fetches.file().fileno(), offer.size, 0)

    async def _update_weights(self, request: Request) -> Response:
        await asyncio.sleep(self.update_latency_s)
        self.weights = self._fetched[8 + int.from_bytes(self._fetched[:8], "little") :]
        self._fetches.keep()
        return JSONResponse({})

    async def _collective_rpc(self, request: Request) -> Response:
        await asyncio.sleep(self.update_latency_s)
        if self.refuses_weights:
            return refusal(400, kind=WEIGHTS_REJECTED)
        self.weights = str((await request.json())["kwargs"]["weights_path"])
        return JSONResponse({})

    async def _update_weight_version(self, request: Request) -> Response:
        self.label = (await request.json())["new_version"]
        return JSONResponse({})

    def answer(self, prompt: list[int], session_id: str) -> tuple[list[int], bool]:
        """Returns the ids of one reply, and whether they end its turn. `session_id` is the
        rollout's id. Raises `ValueError` to refuse the call, with the reason."""
        return list(self._answer_to(prompt)), True

    async def _sample(self) -> None:
        if self._is_lent:
            raise asyncio.CancelledError
        await asyncio.sleep(self.latency_s)
        await self._running.wait()

    async def _generate(self, request: Request) -> Response:
        self.calls += 1
        body = await request.json()
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        sampling = asyncio.ensure_future(self._sample())
        self._sampling.add(sampling)
        try:
            await asyncio.wait([sampling])
        finally:
            sampling.cancel()
            self._sampling.discard(sampling)
            self.in_flight -= 1
        if sampling.cancelled():
            return refusal(503, kind=LENT)
        if (status := max(self.status, self.generate_status)) != 200:
            return refusal(status)
        prompt, limit = body["token_ids"], body["sampling_params"]["max_tokens"]
        if len(prompt) + limit > self._max_model_len:
            return refusal(400, "too long")
        try:
            ids, ends_turn = self.answer(prompt, request.headers.get("X-Session-ID", ""))
        except ValueError as error:
            return refusal(400, str(error))
        return JSONResponse(self._sampled(prompt, ids, limit, ends_turn=ends_turn))

    def _sampled(
        self, prompt: list[int], ids: list[int], limit: int, *, ends_turn: bool
    ) -> dict[str, Any]:
        kept = ids[:limit]
        content = [{"token_id": id_, "logprob": self.logprob(id_)} for id_ in kept]
        choice = {
            "index": 0,
            "finish_reason": "stop" if ends_turn and kept == ids else "length",
            "token_ids": kept,
            "logprobs": {"content": content},
            "weight_versions": [{"version": self.label, "start": 0, "end": len(kept)}],
        }
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(kept)}
        return {"choices": [choice], "usage": usage}
