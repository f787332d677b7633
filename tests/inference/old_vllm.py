"""A stand-in, over real HTTP, for releases of vLLM that need a torch that is not available.

Routes and fields are those of the CPU wheels, all paths below `vllm/entrypoints/`:
0.22 serve/disagg/{api_router,protocol,serving}.py, serve/rlhf/api_router.py,
serve/rpc/api_router.py, serve/instrumentator/{basic,server_info}.py; the same files of 0.24 under
serve/dev/, of 0.26 and 0.27 under scale_out/token_in_token_out/. Pauses are as in
v1/engine/core.py, `EngineCoreProc.pause_scheduler`. The stand-in does not compute: the token after
a chain is a hash of the chain and of the weights, so that a test can tell which weights sampled it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from hashlib import blake2b
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from prorl_service.inference.backend import Backend
from prorl_service.testing.loopback import Handler, Loopback
from tests.inference.scripted_backend import backend_to

VOCABULARY = 300
NO_WEIGHTS = "those of its start"
SCALE_OUT_FLAG = (0, 30)


def token_after(chain: list[int], weights: str) -> int:
    digest = blake2b(f"{weights} {chain}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % VOCABULARY


class OldVllm(Loopback):
    """A vLLM of `release`, such as (0, 24).

    A request takes `arrives_after_s` to reach the scheduler, a token `step_s`, a reload `load_s`.
    """

    def __init__(
        self, release: tuple[int, int], *, has_scale_out: bool = True, root: str = "/m"
    ) -> None:
        self.release = release
        self.root = root
        self.step_s = 0.001
        self.arrives_after_s = 0.0
        self.load_s = 0.0
        self.fails_to_load = False
        self.sampled = 0
        """Number of tokens sampled so far, over all calls."""
        self.before_token: Callable[[], Awaitable[None]] = _nothing
        self.paused = asyncio.Event()
        self.requests: list[dict[str, Any]] = []
        self.paused_for: list[str] = []
        """Modes of the pauses so far."""
        self._has_scale_out = has_scale_out
        self.restart()

    def restart(self) -> None:
        """Loses the weights, like an engine that crashed between two calls."""
        self.weights, self.label = NO_WEIGHTS, "default"
        self._instance = str(time.time_ns())
        self.paused.clear()
        self._runs = asyncio.Event()
        self._runs.set()
        self._aborts: set[asyncio.Event] = set()

    def routes(self) -> Mapping[str, Handler]:
        routes: dict[str, Handler] = {
            "/health": self._nothing,
            "/version": self._version,
            "/v1/models": self._models,
            "/server_info": self._server_info,
            "/is_paused": self._paused,
            "/pause": self._pause,
            "/resume": self._resume,
            "/collective_rpc": self._collective_rpc,
        }
        if self._has_scale_out or self.release < SCALE_OUT_FLAG:
            routes["/inference/v1/generate"] = self._generate
        elif self.release >= (0, 32):
            routes["/inference/v1/generate"] = self._disabled
        if self.release >= (0, 27):
            routes["/weight_info"] = self._weight_info
            routes["/update_weight_version"] = self._update_weight_version
        return routes

    async def _nothing(self, _: Request) -> Response:
        return JSONResponse({})

    async def _disabled(self, _: Request) -> Response:
        return _error("Scale-out endpoints are disabled.", 403)

    async def _version(self, _: Request) -> Response:
        return JSONResponse({"version": f"{self.release[0]}.{self.release[1]}.1"})

    async def _models(self, _: Request) -> Response:
        model = {"id": "m", "root": self.root, "max_model_len": 4096, "owned_by": "vllm"}
        return JSONResponse({"data": [model]})

    async def _server_info(self, request: Request) -> Response:
        as_json = request.query_params.get("config_format") == "json"
        config = self._config() if as_json else "model='m', ..."
        return JSONResponse({"vllm_config": config, "vllm_env": {}, "system_env": {}})

    def _config(self) -> dict[str, Any]:
        model = {"dtype": "torch.bfloat16", "logprobs_mode": "processed_logprobs"}
        return {"instance_id": self._instance, "model_config": model}

    async def _paused(self, _: Request) -> Response:
        return JSONResponse({"is_paused": self.paused.is_set()})

    async def _pause(self, request: Request) -> Response:
        mode = request.query_params.get("mode", "abort")
        self.paused_for.append(mode)
        self.paused.set()
        self._runs.clear()
        if mode == "abort":
            for abort in self._aborts:
                abort.set()
        return JSONResponse({"status": "paused"})

    async def _resume(self, _: Request) -> Response:
        self.paused.clear()
        self._runs.set()
        return JSONResponse({"status": "resumed"})

    async def _collective_rpc(self, request: Request) -> Response:
        body = await request.json()
        assert body["method"] == "reload_weights"
        await asyncio.sleep(self.load_s)
        if self.fails_to_load:
            return _error("no such file", 500)
        self.weights = body["kwargs"]["weights_path"]
        return JSONResponse({"results": [None]})

    async def _weight_info(self, _: Request) -> Response:
        return JSONResponse({"weight_version": self.label})

    async def _update_weight_version(self, request: Request) -> Response:
        self.label = (await request.json())["new_version"]
        return JSONResponse({"success": True, "new_version": self.label})

    async def _generate(self, request: Request) -> Response:
        body = await request.json()
        if not body.get("token_ids") or "sampling_params" not in body:
            return _error("Field required", 400)
        self.requests.append(body)
        await asyncio.sleep(self.arrives_after_s)
        ids, reason = await self._sample(body["token_ids"], body["sampling_params"]["max_tokens"])
        content = [{"token": f"token_id:{one}", "logprob": -one / VOCABULARY} for one in ids]
        choice = {
            "index": 0,
            "logprobs": {"content": content},
            "finish_reason": reason,
            "token_ids": ids,
            "routed_experts": None,
        }
        answer: dict[str, Any] = {"request_id": "x", "choices": [choice], "prompt_logprobs": None}
        if self.release >= (0, 25):
            answer["usage"] = {"prompt_tokens": len(body["token_ids"])}
        return JSONResponse(answer)

    async def _sample(self, prompt: list[int], max_tokens: int) -> tuple[list[int], str]:
        ids: list[int] = []
        abort = asyncio.Event()
        self._aborts.add(abort)
        try:
            while len(ids) < max_tokens:
                await self.before_token()
                await asyncio.sleep(self.step_s)
                await _either(self._runs, abort)
                if abort.is_set():
                    return ids, "abort"
                ids.append(token_after(prompt + ids, self.weights))
                self.sampled += 1
        finally:
            self._aborts.discard(abort)
        return ids, "length"


def _error(message: str, status: int) -> Response:
    return JSONResponse({"error": {"message": message, "type": "X"}}, status_code=status)


async def _nothing() -> None: ...


async def _either(first: asyncio.Event, second: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in (first, second)]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


@asynccontextmanager
async def known_backend(engine: OldVllm) -> AsyncIterator[Backend]:
    """Yields a backend that knows the engine, as the pool's backends do."""
    async with backend_to(engine) as backend:
        await backend.describe()
        yield backend
