"""A stub engine: answers every call after a fixed latency, and knows what each rollout has done.

`python -m bench.load.engine MODEL_DIRECTORY LATENCY_MS --port PORT`. Speaks the token-id route that
the service uses, and OpenAI's chat route for the others. `GET /report` reports the rollouts since
the last report: how many made all turns with the right tool output, and the times from each answer
to the next call; and the engine's own processor time.
"""

import asyncio
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import uvloop
from aiohttp import web

from bench.load.engine_base import (
    TokenEngine,
    call_text,
    generated,
    json_response,
    logprobs,
    usage_of,
)
from bench.load.workload import (
    CLOSING,
    COMMAND,
    MODEL_CALLS,
    SESSION_HEADER,
    THOUGHT,
    TOOL_TURNS,
    is_output,
)


@dataclass(slots=True)
class Session:
    calls: int = 0
    outputs: int = 0
    """Calls whose newest message is the output of the command, counted on the chat route only."""
    answered_at: float = 0.0


class LoadEngine(TokenEngine):
    def __init__(self, model: Path, latency_s: float) -> None:
        super().__init__(model)
        self._latency_s = latency_s
        self._sessions: dict[str, Session] = {}
        self._gaps_ms: list[float] = []
        self._cpu_s = time.process_time()
        self._arguments = orjson.dumps({"command": COMMAND}).decode()
        texts = (f"{THOUGHT}\n{call_text(COMMAND)}", CLOSING)
        self._ids = [[*self.chat.encode(text), self.chat.end_of_turn_id] for text in texts]

    def app(self) -> web.Application:
        app = super().app()
        app.router.add_post("/v1/chat/completions", self._complete)
        return app

    async def report(self, request: web.Request) -> web.Response:
        sessions = self._sessions.values()
        report = {
            "complete": sum(
                one.calls == MODEL_CALLS and one.outputs in (0, TOOL_TURNS) for one in sessions
            ),
            "gaps_ms": self._gaps_ms,
            "cpu_s": time.process_time() - self._cpu_s,
        }
        self._sessions, self._gaps_ms, self._cpu_s = {}, [], time.process_time()
        return json_response(report)

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

    async def generate(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        _, closing = await self._turn(request)
        return generated(self._ids[closing], len(body["token_ids"]))

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
            choice |= {"token_ids": ids, "logprobs": logprobs(ids)}
        return json_response(
            {
                "id": f"chatcmpl-{session.calls}",
                "object": "chat.completion",
                "created": int(time.time()),
                "model": body.get("model", "stub"),
                "choices": [choice],
                "usage": usage_of(100 * session.calls, len(ids)),
            }
        )


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content)


if __name__ == "__main__":
    model, latency_ms, _, port = sys.argv[1:]
    uvloop.run(LoadEngine(Path(model), float(latency_ms) / 1e3).serve(int(port)))
