"""The engine's HTTP routes: the subset of vLLM's that the service uses, field by field.

The weight routes are those of vLLM with our plug-in: they fetch a file, or open it where this host
shares its file system. They read any checkpoint on this machine for their caller: without a key,
listen on loopback or on a private network. Pages in a browser are always refused.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Body, Depends, FastAPI, Header, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from prorl_service.inference.engines.base import ADAPTER_PREFIX
from prorl_service.inference.engines.http import WEIGHTS_REJECTED
from prorl_service.inference.engines.logprobs import PROCESSED
from prorl_service.inference.engines.reference import OWNER
from prorl_service.inference.reference_engine.batcher import (
    Batcher,
    EngineDead,
    PauseMode,
    Sequence,
)
from prorl_service.inference.reference_engine.checkpoints import (
    Served,
    UnfitCheckpoint,
    WeightUpdate,
)
from prorl_service.inference.reference_engine.protocol import (
    FileToFetch,
    GenerateBody,
    RefusedRequest,
    error_body,
)
from prorl_service.net.bearer import RequireBearer
from prorl_service.net.callers import Caller, TokenCallers
from prorl_service.net.fetching import FetchFailed
from prorl_service.net.origins import RefuseForeignPages

router = APIRouter()


@dataclass(slots=True)
class EngineState:
    """State that the routes share. `update`: the weights that were fetched, if any."""

    batcher: Batcher
    model_id: str
    root: Path
    dtype: str
    max_model_len: int
    served: Served
    update: WeightUpdate | None = None
    started_at: float = field(default_factory=time.time)


def _engine(request: Request) -> EngineState:
    engine: EngineState = request.app.state.engine
    return engine


TheEngine = Annotated[EngineState, Depends(_engine)]

# --- generation ---------------------------------------------------------------------------------


@router.post("/inference/v1/generate")
async def generate(
    body: GenerateBody,
    request: Request,
    engine: TheEngine,
    x_session_id: Annotated[str | None, Header()] = None,
) -> Response:
    if body.model not in (None, engine.model_id):
        message = f"The model `{body.model}` does not exist. This one is {engine.model_id}."
        raise RefusedRequest(message, status=404, kind="NotFoundError", param="model")
    batcher, model = engine.batcher, engine.batcher.model
    make = partial(
        body.sequence, model, max_model_len=engine.max_model_len, session_id=x_session_id
    )
    sequence = await asyncio.to_thread(make) if body.content_parts else make()
    watcher = asyncio.create_task(_abort_on_disconnect(request, batcher, sequence))
    try:
        await batcher.generate(sequence)
    finally:
        watcher.cancel()
    answer = body.answer(sequence, model, model_id=engine.model_id)
    return Response(orjson.dumps(answer), media_type="application/json")


async def _abort_on_disconnect(request: Request, batcher: Batcher, sequence: Sequence) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    batcher.abort(sequence)


# --- state of the engine ------------------------------------------------------------------------


@router.get("/health")
async def health(engine: TheEngine) -> Response:
    return Response(status_code=503 if engine.batcher.failure else 200)


@router.get("/v1/models")
async def models(engine: TheEngine) -> dict[str, Any]:
    model = {
        "id": engine.model_id,
        "object": "model",
        "created": int(time.time()),
        "owned_by": OWNER,
        "root": str(engine.root),
        "parent": None,
        "max_model_len": engine.max_model_len,
        "dtype": engine.dtype,
        "logprobs_mode": PROCESSED,
    }
    adapter = {"id": f"{ADAPTER_PREFIX}adapter", "root": "", "parent": engine.model_id}
    return {"object": "list", "data": [model] + [adapter] * engine.served.has_adapter}


@router.get("/metrics")
async def metrics(engine: TheEngine) -> Response:
    batcher, counters = engine.batcher, engine.batcher.counters
    values = [
        ("vllm:num_requests_running", "gauge", len(batcher.running)),
        ("vllm:num_requests_waiting", "gauge", len(batcher.waiting)),
        ("vllm:prompt_tokens_total", "counter", counters.prompt_tokens),
        ("vllm:generation_tokens_total", "counter", counters.generation_tokens),
        ("vllm:prefix_cache_queries_total", "counter", counters.prompt_tokens),
        ("vllm:prefix_cache_hits_total", "counter", counters.cached_tokens),
        ("vllm:kv_cache_usage_perc", "gauge", batcher.kv.use),
        ("vllm:num_preemptions_total", "counter", 0),  # a sequence has room for all its tokens
        ("vllm:request_queue_time_seconds_sum", "counter", counters.queue_s),
        ("vllm:request_prefill_time_seconds_sum", "counter", counters.prefill_s),
        ("vllm:request_decode_time_seconds_sum", "counter", counters.decode_s),
        ("vllm:request_decode_time_seconds_count", "counter", counters.finished),
    ]
    labels = f'{{model_name="{engine.model_id}"}}'
    lines = [f"# TYPE {name} {kind}\n{name}{labels} {value}\n" for name, kind, value in values]
    lines.append(f'vllm:cache_config_info{{kv_cache_size_tokens="{batcher.kv.capacity}"}} 1\n')
    lines.append(f"process_start_time_seconds {engine.started_at}\n")
    return Response("".join(lines), media_type="text/plain; version=0.0.4")


# --- pauses and weights -------------------------------------------------------------------------


@router.post("/pause")
async def pause(engine: TheEngine, mode: PauseMode = "abort") -> dict[str, str]:
    await engine.batcher.pause(mode)
    return {"status": "paused"}


@router.post("/resume")
async def resume(engine: TheEngine) -> dict[str, str]:
    engine.batcher.resume()
    return {"status": "resumed"}


@router.get("/is_paused")
async def is_paused(engine: TheEngine) -> dict[str, bool]:
    return {"is_paused": engine.batcher.is_paused}


@router.get("/weight_info")
async def weight_info(engine: TheEngine) -> dict[str, str]:
    return {"weight_version": engine.batcher.version}


@router.post("/update_weight_version")
async def update_weight_version(
    engine: TheEngine, new_version: Annotated[str, Body(embed=True)]
) -> dict[str, Any]:
    engine.batcher.version = new_version
    return {"success": True, "new_version": new_version}


@router.post("/collective_rpc")
async def collective_rpc(
    engine: TheEngine,
    method: Annotated[Literal["reload_weights"], Body()],
    kwargs: Annotated[dict[Literal["weights_path"], Path], Body(min_length=1)],
) -> dict[str, Any]:
    update = WeightUpdate(engine.served)
    await asyncio.to_thread(update.add_directory, kwargs["weights_path"])
    await engine.batcher.change_weights(update.apply)
    return {"results": [None]}


@router.post("/init_weight_transfer_engine")
async def init_weight_transfer_engine(
    engine: TheEngine, init_info: Annotated[FileToFetch, Body(embed=True)]
) -> dict[str, str]:
    """Fetches a safetensors file with the whole model, or with a LoRA adapter for the model that
    the engine was started with, and checks it."""
    engine.update = None  # a refused file ends the update
    update = WeightUpdate(engine.served)
    try:
        await asyncio.to_thread(update.fetch, init_info.offer())
    except FetchFailed as error:
        raise RefusedRequest(f"The weights did not arrive: {error}") from error
    engine.update = update
    return {"message": "Weights fetched"}


@router.post("/update_weights")
async def update_weights(engine: TheEngine) -> dict[str, str]:
    update, engine.update = engine.update, None
    if update is None:
        raise RefusedRequest("No weights were offered: POST /init_weight_transfer_engine first")
    await engine.batcher.change_weights(update.apply)
    return {"message": "Weights updated"}


@router.post("/start_weight_update")
@router.post("/finish_weight_update")
async def bracket_weight_update() -> dict[str, str]:
    """Does nothing: `/update_weights` replaces the whole model."""
    return {"message": "OK"}


# --- the application ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Callers:
    """Rules for callers. `key`: the key of all callers, if any; `checks_host` and `allowed_hosts`:
    see `RefuseForeignPages`."""

    key: str | None = None
    checks_host: bool = True
    allowed_hosts: Collection[str] = ()


def create_app(engine: EngineState, callers: Callers, on_death: Callable[[], None]) -> FastAPI:
    """`on_death` is called when no more tokens will come, after all requests were answered."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        loop = asyncio.create_task(engine.batcher.run())
        loop.add_done_callback(lambda _: on_death())
        yield
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)
        engine.served.fetches.close()

    app = FastAPI(title="ProRL reference engine", lifespan=lifespan)
    app.state.engine = engine
    app.include_router(router)
    _guard(app, callers)

    @app.exception_handler(RefusedRequest)
    async def refused(_: Request, error: RefusedRequest) -> JSONResponse:
        return JSONResponse(error.body, error.status)

    @app.exception_handler(UnfitCheckpoint)
    async def rejected(_: Request, error: UnfitCheckpoint) -> JSONResponse:
        return _error(400, WEIGHTS_REJECTED, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        param = ".".join(map(str, first["loc"]))
        return _error(400, "Bad Request", f"{param}: {first['msg']}", param)

    @app.exception_handler(EngineDead)
    async def dead(_: Request, error: EngineDead) -> JSONResponse:
        return _error(500, "InternalServerError", f"The engine died: {error}")

    @app.exception_handler(HTTPException)
    async def unknown(_: Request, error: HTTPException) -> JSONResponse:
        return _error(error.status_code, "HTTPException", str(error.detail))

    return app


class _KeyAccess:
    """All of the engine but its health needs the key."""

    def is_open(self, path: str) -> bool:
        return path == "/health"

    def refusal(self, caller: Caller | None, method: str, path: str) -> JSONResponse | None:
        if caller is not None:
            return None
        return _error(401, "Unauthorized", "This engine requires its key as a bearer token.")


def _guard(app: FastAPI, callers: Callers) -> None:
    if callers.key is not None:
        app.add_middleware(
            RequireBearer,
            callers=TokenCallers(callers.key),
            access=_KeyAccess(),
        )
    app.add_middleware(
        RefuseForeignPages,
        allowed_hosts=callers.allowed_hosts,
        checks_host=callers.checks_host,
        response=lambda refusal: _error(403, "Forbidden", f"{refusal}: {refusal.hint}"),
    )


def _error(status: int, kind: str, message: str, param: str | None = None) -> JSONResponse:
    body = error_body(message, status=status, kind=kind, param=param)
    return JSONResponse(body, status)
