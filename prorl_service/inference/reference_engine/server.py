"""The process of the reference engine: binds, loads, serves until a signal or a failure."""

import logging
import socket
from collections.abc import Collection
from pathlib import Path
from typing import Literal

import torch
import uvicorn
from transformers.utils import logging as transformers_logging

from prorl_service.errors import BackendError
from prorl_service.inference.reference_engine.app import Callers, EngineState, create_app
from prorl_service.inference.reference_engine.batcher import Batcher
from prorl_service.inference.reference_engine.checkpoints import Served
from prorl_service.inference.reference_engine.model import PackedModel
from prorl_service.net.credentials import is_loopback
from prorl_service.net.sockets import listener

log = logging.getLogger(__name__)

SHUTDOWN_GRACE_S = 10
"""Seconds that running requests get to finish after a signal."""


def serve(
    model: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    max_model_len: int = 4096,
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    threads: int | None = None,
    kv_cache_gib: float = 2.0,
    api_key: str | None = None,
    allowed_hosts: Collection[str] = (),
) -> None:
    """Serves the checkpoint in `model` until SIGTERM or SIGINT.

    `max_model_len`, in tokens, is cut to the model's own limit. `threads`: None takes one for each
    50 million parameters, at most one per core. Without an `api_key`, anyone who reaches the engine
    may change its weights; on loopback it then answers only to the names of loopback and
    `allowed_hosts`. Raises `BackendError` if the model cannot be served or the engine dies,
    `ProRLError` if the address is taken.
    """
    transformers_logging.disable_progress_bar()
    with listener(host, port) as bound:
        log.info("loading %s", model)
        packed = PackedModel(model, getattr(torch, dtype))
        torch.set_num_threads(threads or packed.suitable_threads())
        kv_tokens = int(kv_cache_gib * 2**30) // packed.kv_layout.bytes_per_token
        context = min(max_model_len, packed.max_positions)
        if context > kv_tokens:
            raise BackendError(
                f"one sequence of {context} tokens does not fit a KV cache of {kv_tokens} tokens",
                hint="lower --max-model-len",
                retryable=False,
            )
        batcher = Batcher(packed, kv_tokens)
        name, at = model.resolve().name, bound.getsockname()[1]
        log.info("serving %s, %d tokens of context, at http://%s:%d", name, context, host, at)
        callers = Callers(api_key, api_key is None and is_loopback(host), allowed_hosts)
        served = Served(packed.module)
        _run(EngineState(batcher, name, model.resolve(), dtype, context, served), callers, bound)
    if batcher.failure:
        raise BackendError(f"the engine died: {batcher.failure}") from batcher.failure


def _run(engine: EngineState, callers: Callers, bound: socket.socket) -> None:
    def stop() -> None:
        server.should_exit = True

    config = uvicorn.Config(
        create_app(engine, callers, on_death=stop),
        log_level="warning",
        timeout_keep_alive=75,
        timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
    )
    server = uvicorn.Server(config)
    server.run(sockets=[bound])
