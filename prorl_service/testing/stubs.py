"""Servers for tests over real HTTP: an engine and a judge that answer what a test says.

Not used by the service itself.
"""

import asyncio
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from aiohttp import web

from prorl_service.inference.answers import LENT, NEVER_UPDATED, REFERENCE_ENGINE, WEIGHTS_REJECTED
from prorl_service.inference.logprobs import PROCESSED

START_TIMEOUT_S = 60.0


def safetensors(content: bytes) -> bytes:
    """Returns a safetensors file with one tensor, whose values are `content`."""
    tensor = {"dtype": "U8", "shape": [len(content)], "data_offsets": [0, len(content)]}
    header = json.dumps({"content": tensor}).encode()
    return len(header).to_bytes(8, "little") + header + content


class _Loopback(ABC):
    """A server on a loopback port, while entered as an async context."""

    url = ""
    _host = "127.0.0.1"
    _port = 0

    @abstractmethod
    def application(self) -> web.Application:
        """Returns an application with the server's routes; a subclass may add others."""

    async def __aenter__(self) -> Self:
        self._runner = web.AppRunner(self.application(), handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port)
        await site.start()
        self.url = f"http://{self._host}:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @contextmanager
    def in_thread(self) -> Iterator[Self]:
        """Runs it on an event loop in a thread of its own, for callers without a loop."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self.__aenter__(), loop).result(START_TIMEOUT_S)
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(self.__aexit__(), loop).result(START_TIMEOUT_S)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


class StubJudge(_Loopback):
    """An OpenAI-compatible endpoint over real HTTP; each reply is a function of the messages.

    `async with StubJudge(...) as judge`; its base URL is `judge.url`. The first calls fail with
    `statuses`, one each; `latency_s` delays all calls. `requests` are the bodies, `headers` their
    headers, `most_in_flight` is the peak of concurrent calls.
    """

    def __init__(self, reply: Callable[[list[dict[str, str]]], str]) -> None:
        self.statuses: list[int] = []
        self.latency_s = 0.0
        self.requests: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self._reply = reply

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/chat/completions", self._complete)
        return app

    async def _complete(self, request: web.Request) -> web.Response:
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
            return web.Response(status=self.statuses.pop(0), text="stub")
        message = {"role": "assistant", "content": self._reply(body["messages"])}
        return web.json_response({"choices": [{"message": message, "finish_reason": "stop"}]})


class StubEngine(_Loopback):
    """An engine's routes over real HTTP; every answer is a function of the prompt.

    `async with StubEngine(...) as engine`. Set `status` to make every call fail with it
    (`generate_status`: only calls that generate), `latency_s` to delay calls, `version` or
    `model_id` to claim others, `logprob` to say how likely an id was. `calls` counts calls that
    generate, `in_flight` those that have not ended; `most_in_flight` is their peak. Like vLLM, it
    refuses calls whose prompt and `max_tokens` together exceed `max_model_len`. `weights` are the
    values of the file, or the directory, that it was given last, b"" at first. With
    `refuses_weights` it refuses weights like the reference engine; `update_latency_s` delays
    updates. With an `api_key` it refuses calls without the key, except to `/health`;
    `authorizations` are the headers seen.
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
        self.latency_s = latency_s
        self.update_latency_s = 0.0
        self.status = 200
        self.generate_status = 200
        self.api_key: str | None = None
        self.authorizations: set[str | None] = set()
        self.refuses_weights = False
        self.weights: bytes | str = b""
        self.version: int | None = None
        self.model_id = "stub"
        self.logprob: Callable[[int], float] = lambda _: -0.5
        self.calls = 0
        self.in_flight = 0
        self.most_in_flight = 0
        self._model = model
        self._answer = answer
        self._max_model_len = max_model_len
        self._host, self._port = host, port
        self._received: bytes | str = b""
        self._running = asyncio.Event()
        self._running.set()
        self._is_lent = False
        self._sampling: set[asyncio.Future[None]] = set()

    def lend(self) -> None:
        """Fails calls as lent, like a gateway to a trainer's engines while it trains."""
        self._is_lent = True
        for sampling in self._sampling:
            sampling.cancel()

    def take_back(self) -> None:
        self._is_lent = False

    def restart(self) -> None:
        """Serves as after a crash, with its initial weights."""
        self.version, self.weights = None, b""
        self._running.set()

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._check_key])
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/weight_info", self._weight_info)
        app.router.add_get("/is_paused", self._is_paused)
        app.router.add_post("/inference/v1/generate", self._generate)
        app.router.add_post("/pause", self._pause)
        app.router.add_post("/resume", self._resume)
        app.router.add_post("/start_weight_update", self._start_weight_update)
        app.router.add_post("/update_weights", self._update_weights)
        app.router.add_post("/finish_weight_update", self._finish_weight_update)
        app.router.add_post("/collective_rpc", self._collective_rpc)
        app.router.add_post("/update_weight_version", self._update_weight_version)
        app.router.add_post("/open_weights", self._open_weights)
        return app

    @web.middleware
    async def _check_key(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        given = request.headers.get("Authorization")
        self.authorizations.add(given)
        wanted = None if self.api_key is None else f"Bearer {self.api_key}"
        if wanted in (None, given) or request.path == "/health":
            return await handler(request)
        error = {"type": "Unauthorized", "message": f"Incorrect API key provided: {given}"}
        return web.json_response({"error": error}, status=401)

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=self.status)

    async def _models(self, request: web.Request) -> web.Response:
        model = {
            "id": self.model_id,
            "root": str(self._model),
            "max_model_len": self._max_model_len,
            "owned_by": REFERENCE_ENGINE,
            "logprobs_mode": PROCESSED,
        }
        return web.json_response({"data": [model]})

    async def _weight_info(self, request: web.Request) -> web.Response:
        return web.json_response({"weight_version": self._label()})

    def _label(self) -> str:
        return NEVER_UPDATED if self.version is None else str(self.version)

    async def _is_paused(self, request: web.Request) -> web.Response:
        is_paused = self._is_lent or not self._running.is_set()
        return web.json_response({"is_paused": is_paused, "is_lent": self._is_lent})

    async def _pause(self, request: web.Request) -> web.Response:
        self._running.clear()
        return web.json_response({})

    async def _resume(self, request: web.Request) -> web.Response:
        self._running.set()
        return web.json_response({})

    async def _start_weight_update(self, request: web.Request) -> web.Response:
        return web.json_response({})

    async def _open_weights(self, request: web.Request) -> web.Response:
        return web.json_response({"is_opened": False})

    async def _update_weights(self, request: web.Request) -> web.Response:
        file = await request.content.read()
        self._received = file[8 + int.from_bytes(file[:8], "little") :]
        await asyncio.sleep(self.update_latency_s)
        return web.json_response({})

    async def _finish_weight_update(self, request: web.Request) -> web.Response:
        if not self.refuses_weights:
            self.version = int((await request.json())["weight_version"])
        return self._take(self._received)

    async def _collective_rpc(self, request: web.Request) -> web.Response:
        body = await request.json()
        await asyncio.sleep(self.update_latency_s)
        return self._take(str(body["kwargs"]["weights_path"]))

    async def _update_weight_version(self, request: web.Request) -> web.Response:
        self.version = int((await request.json())["new_version"])
        return web.json_response({})

    def _take(self, weights: bytes | str) -> web.Response:
        if self.refuses_weights:
            error = {"type": WEIGHTS_REJECTED, "message": "stub"}
            return web.json_response({"error": error}, status=400)
        self.weights = weights
        return web.json_response({})

    def answer(self, prompt: list[int], session_id: str) -> tuple[list[int], bool]:
        """Returns the ids of one reply, and whether they end its turn. `session_id` is the
        rollout's id."""
        return list(self._answer(prompt)), True

    async def _sample(self) -> None:
        if self._is_lent:
            raise asyncio.CancelledError
        await asyncio.sleep(self.latency_s)
        await self._running.wait()

    async def _generate(self, request: web.Request) -> web.Response:
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
            return web.json_response({"error": {"type": LENT, "message": "stub"}}, status=503)
        status = max(self.status, self.generate_status)
        if status != 200:
            return web.json_response({"error": {"message": "stub"}}, status=status)
        prompt, limit = body["token_ids"], body["sampling_params"]["max_tokens"]
        if len(prompt) + limit > self._max_model_len:
            return web.json_response({"error": {"message": "too long"}}, status=400)
        ids, ends_turn = self.answer(prompt, request.headers.get("X-Session-ID", ""))
        kept = ids[:limit]
        choice = {
            "index": 0,
            "finish_reason": "stop" if ends_turn and kept == ids else "length",
            "token_ids": kept,
            "logprobs": {
                "content": [{"token_id": id_, "logprob": self.logprob(id_)} for id_ in kept]
            },
            "weight_versions": [{"version": self._label(), "start": 0, "end": len(kept)}],
        }
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(kept)}
        return web.json_response({"choices": [choice], "usage": usage})
