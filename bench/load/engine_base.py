"""The token-id route of vLLM that the service uses, for engines of measurements."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from prorl_service.inference.engines.logprobs import PROCESSED
from prorl_service.tokens.chat import ChatFormat

LOGPROB = -0.5
MAX_MODEL_LEN = 32768
MAX_BODY_BYTES = 2**24


class TokenEngine:
    """An engine process; `generate` answers calls."""

    def __init__(self, directory: Path) -> None:
        self.chat = ChatFormat.load(directory)
        self._directory = str(directory)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/inference/v1/generate", self.generate)
        app.router.add_get("/report", self.report)
        return app

    async def generate(self, request: web.Request) -> web.Response:
        raise NotImplementedError

    async def report(self, request: web.Request) -> web.Response:
        raise NotImplementedError

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        model = {
            "id": "stub",
            "root": self._directory,
            "max_model_len": MAX_MODEL_LEN,
            "logprobs_mode": PROCESSED,
        }
        return json_response({"data": [{**model, "object": "model", "owned_by": "bench"}]})

    async def serve(self, port: int) -> None:
        runner = web.AppRunner(self.app(), access_log=None, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, backlog=4096).start()
        await asyncio.Event().wait()


def generated(ids: Sequence[int], prompt_tokens: int, cached: int = 0) -> web.Response:
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "token_ids": ids,
        "logprobs": logprobs(ids),
        "weight_versions": [{"version": "default", "start": 0, "end": len(ids)}],
    }
    usage = {
        **usage_of(prompt_tokens, len(ids)),
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return json_response({"choices": [choice], "usage": usage})


def logprobs(ids: Sequence[int]) -> dict[str, Any]:
    return {"content": [{"token_id": id_, "token": "", "logprob": LOGPROB} for id_ in ids]}


def usage_of(prompt: int, completion: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def call_text(command: str) -> str:
    """Returns a reply that calls bash."""
    arguments = orjson.dumps({"command": command}).decode()
    return f'<tool_call>\n{{"name": "bash", "arguments": {arguments}}}\n</tool_call>'


def json_response(body: dict[str, Any]) -> web.Response:
    return web.Response(body=orjson.dumps(body), content_type="application/json")
