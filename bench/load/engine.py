"""A stub engine: answers every call after a fixed latency, and knows what each rollout has done.

`python -m bench.load.engine PORT MODEL_DIRECTORY LATENCY_MS`. Speaks the token-id route of vLLM
that the service uses, and OpenAI's chat route for the others. `GET /report` reports the rollouts
since the last report: how many there were, how many made all turns with the right tool output, and
the times from each answer to the next call; and the engine's own processor time.
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import uvloop
from aiohttp import web

from bench.load.workload import (
    CLOSING,
    COMMAND,
    MODEL_CALLS,
    SESSION_HEADER,
    THOUGHT,
    TOOL_TURNS,
    is_output,
)
from prorl_service.inference.engines.vllm_logprobs import PROCESSED
from prorl_service.tokens.chat import ChatFormat

LOGPROB = -0.5
MAX_MODEL_LEN = 32768
MAX_BODY_BYTES = 2**24


@dataclass(slots=True)
class Session:
    calls: int = 0
    outputs: int = 0
    """Calls whose newest message is the output of the command, counted on the chat route only."""
    answered_at: float = 0.0


class Engine:
    def __init__(self, model: Path, latency_s: float) -> None:
        chat = ChatFormat.load(model)
        self._chat = chat
        self._model = str(model)
        self._latency_s = latency_s
        self._sessions: dict[str, Session] = {}
        self._gaps_ms: list[float] = []
        self._cpu_s = time.process_time()
        arguments = orjson.dumps({"command": COMMAND}).decode()
        call = f'{{"name": "bash", "arguments": {arguments}}}'
        self._arguments = arguments
        self._texts = (f"{THOUGHT}\n<tool_call>\n{call}\n</tool_call>", CLOSING)
        self._ids = [[*chat.encode(text), chat.end_of_turn_id] for text in self._texts]

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/inference/v1/generate", self._generate)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/report", self._report)
        return app

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        model = {
            "id": "stub",
            "root": self._model,
            "max_model_len": MAX_MODEL_LEN,
            "logprobs_mode": PROCESSED,
        }
        return _json({"data": [{**model, "object": "model", "owned_by": "bench"}]})

    async def _report(self, request: web.Request) -> web.Response:
        sessions = self._sessions.values()
        report = {
            "rollouts": len(sessions),
            "complete": sum(
                one.calls == MODEL_CALLS and one.outputs in (0, TOOL_TURNS) for one in sessions
            ),
            "gaps_ms": self._gaps_ms,
            "cpu_s": time.process_time() - self._cpu_s,
        }
        self._sessions, self._gaps_ms, self._cpu_s = {}, [], time.process_time()
        return _json(report)

    async def _turn(self, request: web.Request) -> tuple[Session, bool]:
        """Waits for the latency; returns the session, and whether the turn is the closing one."""
        arrived_at = time.perf_counter()
        session = self._sessions.setdefault(request.headers[SESSION_HEADER], Session())
        if session.calls:
            self._gaps_ms.append(1e3 * (arrived_at - session.answered_at))
        session.calls += 1
        await asyncio.sleep(self._latency_s)
        session.answered_at = time.perf_counter()
        return session, session.calls > TOOL_TURNS

    async def _generate(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        _, closing = await self._turn(request)
        ids = self._ids[closing]
        choice = {
            "index": 0,
            "finish_reason": "stop",
            "token_ids": ids,
            "logprobs": _logprobs(ids),
            "weight_versions": [{"version": "default", "start": 0, "end": len(ids)}],
        }
        return _json({"choices": [choice], "usage": _usage(len(body["token_ids"]), len(ids))})

    async def _complete(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        session, closing = await self._turn(request)
        last = body["messages"][-1]
        session.outputs += last["role"] == "tool" and is_output(_text(last["content"]))
        message: dict[str, Any] = {"role": "assistant", "content": CLOSING if closing else THOUGHT}
        if not closing:
            function = {"name": "bash", "arguments": self._arguments}
            call = {"id": f"call_{session.calls}", "type": "function", "function": function}
            message["tool_calls"] = [call]
        ids = self._ids[closing]
        choice: dict[str, Any] = {
            "index": 0,
            "finish_reason": "stop" if closing else "tool_calls",
            "message": message,
        }
        if body.get("logprobs"):
            choice |= {"token_ids": ids, "logprobs": _logprobs(ids)}
        return _json(
            {
                "id": f"chatcmpl-{session.calls}",
                "object": "chat.completion",
                "created": int(time.time()),
                "model": body.get("model", "stub"),
                "choices": [choice],
                "usage": _usage(100 * session.calls, len(ids)),
            }
        )


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content)


def _logprobs(ids: Sequence[int]) -> dict[str, Any]:
    return {"content": [{"token_id": id_, "token": "", "logprob": LOGPROB} for id_ in ids]}


def _usage(prompt: int, completion: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def _json(body: dict[str, Any]) -> web.Response:
    return web.Response(body=orjson.dumps(body), content_type="application/json")


async def serve(port: int, model: Path, latency_s: float) -> None:
    runner = web.AppRunner(Engine(model, latency_s).app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=4096).start()
    await asyncio.Event().wait()


def main() -> None:
    port, model, latency_ms = sys.argv[1:]
    uvloop.run(serve(int(port), Path(model), float(latency_ms) / 1e3))


if __name__ == "__main__":
    main()
