"""The process of the reference engine: loads, binds, serves until a signal or a failure."""

import socket
from pathlib import Path
from typing import Literal

import torch
import uvicorn
from transformers.utils import logging as transformers_logging

from prorl_service.errors import BackendError
from prorl_service.inference.engine.app import Engine, create_app
from prorl_service.inference.engine.batcher import Batcher
from prorl_service.inference.engine.model import PackedModel

SHUTDOWN_GRACE_S = 10
"""What running requests get to finish after a signal."""


def serve(
    model: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    max_model_len: int = 4096,
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    threads: int = 1,
    kv_cache_gib: float = 2.0,
) -> None:
    """Serves the checkpoint in `model` until SIGTERM or SIGINT.

    `max_model_len`, in tokens, is cut to what the model knows. More `threads` than free cores make
    a small model slower. Raises `BackendError` if the model cannot be served, the address is taken
    or the engine dies.
    """
    torch.set_num_threads(threads)
    transformers_logging.disable_progress_bar()
    with _bind(host, port) as listener:
        packed = PackedModel(model, getattr(torch, dtype))
        kv_tokens = int(kv_cache_gib * 2**30) // packed.kv_layout.bytes_per_token
        context = min(max_model_len, packed.max_positions)
        if context > kv_tokens:
            raise BackendError(
                f"one sequence of {context} tokens does not fit a KV cache of {kv_tokens} tokens",
                hint="lower --max-model-len",
                retryable=False,
            )
        batcher = Batcher(packed, kv_tokens)
        _run(Engine(batcher, model.resolve().name, model.resolve(), context), listener)
    if batcher.failure:
        raise BackendError(f"the engine died: {batcher.failure}") from batcher.failure


def _run(engine: Engine, listener: socket.socket) -> None:
    def stop() -> None:
        server.should_exit = True

    config = uvicorn.Config(
        create_app(engine, on_death=stop),
        log_level="warning",
        timeout_keep_alive=75,
        timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
    )
    server = uvicorn.Server(config)
    server.run(sockets=[listener])


def _bind(host: str, port: int) -> socket.socket:
    """Before the slow load; refuses connections until the server listens."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        message = f"cannot listen on {host}:{port}: {error.strerror}"
        raise BackendError(message, hint="choose another --port", retryable=False) from error
    return listener
