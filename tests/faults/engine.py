"""An engine in its own process that can be made to die, hang, slow down or answer badly.

    python -m tests.faults.engine PORT MODEL_DIR LATENCY_S

`POST /fault` with a `Fault` sets the behaviour from now on; `GET /counts` returns the `Counts`.
`/health` is fine whatever the fault. Sampled tokens are a function of the prompt, so that a reader
of a trajectory can tell whether an engine that was asked with exactly that prompt sampled them.
"""

import asyncio
import os
import signal
import sys
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self
from zlib import crc32

import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from prorl_service.testing import StubEngine
from prorl_service.testing.loopback import Handler
from prorl_service.tokens.chat import ChatFormat

LOGPROB = -0.5
"""Logprob that the stub reports for each token."""

Answer = dict[str, Any]
Misbehave = Callable[["FaultyEngine", Request, bytes], Awaitable[Response]]


@dataclass(frozen=True)
class Fault:
    """A misbehaviour to come: one of `FAULTS`, or "" for none.

    The next `sound_calls` calls are still answered well; if the fault happens `once`, so are the
    calls after it.
    """

    name: str = ""
    sound_calls: int = 0
    once: bool = False
    slowdown: float = 1.0


@dataclass
class Counts:
    """Numbers of answered calls."""

    well: int = 0
    badly: int = 0


def sampled(prompt_ids: Sequence[int]) -> list[int]:
    """Returns the sampled ids, without the end of the turn."""
    return [5 + crc32(array("i", prompt_ids)) % 200, 6]


def _status(status: int) -> Misbehave:
    async def misbehave(_: "FaultyEngine", __: Request, sound: bytes) -> Response:
        return JSONResponse({"error": {"message": "out of order"}}, status)

    return misbehave


def _text(text: str) -> Misbehave:
    async def misbehave(_: "FaultyEngine", __: Request, sound: bytes) -> Response:
        return Response(text)

    return misbehave


def _spoilt(spoil: Callable[[Answer], object]) -> Misbehave:
    """Returns a misbehaviour that changes a sound answer by `spoil`."""

    async def misbehave(_: "FaultyEngine", __: Request, sound: bytes) -> Response:
        answer = orjson.loads(sound)
        spoil(answer)
        return JSONResponse(answer)

    return misbehave


async def _cut_off(engine: "FaultyEngine", request: Request, sound: bytes) -> Response:
    """Aborts the connection in the middle of the body."""

    async def half() -> AsyncIterator[bytes]:
        yield sound[: len(sound) // 2]
        engine.hang_up(request)
        await asyncio.Event().wait()

    return StreamingResponse(half(), headers={"Content-Length": str(len(sound))})


async def _hang_up(engine: "FaultyEngine", request: Request, _: bytes) -> Response:
    engine.hang_up(request)
    return Response()


def _choice(answer: Answer) -> Answer:
    choice: Answer = answer["choices"][0]
    return choice


def _with_ids(answer: Answer, ids: list[int]) -> None:
    """Replaces the ids, and keeps everything else consistent with them."""
    choice = _choice(answer)
    spans = [span | {"end": len(ids)} for span in choice["weight_versions"]]
    choice.update(
        token_ids=ids,
        logprobs={"content": [{"token_id": id_, "logprob": LOGPROB} for id_ in ids]},
        weight_versions=spans if ids else [],
    )


def _signal(number: signal.Signals) -> Misbehave:
    async def misbehave(_: "FaultyEngine", __: Request, sound: bytes) -> Response:
        os.kill(os.getpid(), number)
        return Response(sound)

    return misbehave


BAD_ANSWERS: dict[str, Misbehave] = {
    "status 500": _status(500),
    "status 503": _status(503),
    "not JSON": _text("<html>502 Bad Gateway</html>"),
    "JSON of another shape": _text('{"object": "list", "data": [1, 2]}'),
    "ids outside the vocabulary": _spoilt(lambda answer: _with_ids(answer, [7, 1_000_000])),
    "more ids than asked for": _spoilt(lambda answer: _with_ids(answer, [7] * 100_000)),
    "no ids": _spoilt(lambda answer: _with_ids(answer, [])),
    "too few logprobs": _spoilt(lambda answer: _choice(answer)["logprobs"]["content"].pop()),
    "usage that is none": _spoilt(
        lambda answer: answer["usage"].update(prompt_tokens_details={"cached_tokens": "many"})
    ),
    "body cut off": _cut_off,
    "connection closed": _hang_up,
}
FAULTS = BAD_ANSWERS | {"killed": _signal(signal.SIGKILL), "hung": _signal(signal.SIGSTOP)}


class FaultyEngine(StubEngine):
    async def __aenter__(self) -> Self:
        self.counts = Counts()
        self._fault = Fault()
        self._usual_latency_s = self.latency_s
        return await super().__aenter__()

    def routes(self) -> Mapping[str, Handler]:
        return {**super().routes(), "/fault": self._set_fault, "/counts": self._get_counts}

    async def _set_fault(self, request: Request) -> Response:
        self._fault = Fault(**await request.json())
        self.latency_s = self._usual_latency_s * self._fault.slowdown
        return JSONResponse({})

    async def _get_counts(self, _: Request) -> Response:
        return JSONResponse(asdict(self.counts))

    async def respond(self, request: Request) -> Response:
        response = await super().respond(request)
        if request.url.path != "/inference/v1/generate":
            return response
        misbehave = self._next()
        if misbehave is None:
            self.counts.well += 1
            return response
        self.counts.badly += 1
        return await misbehave(self, request, bytes(response.body))

    def _next(self) -> Misbehave | None:
        """Returns the misbehaviour for this call, if any."""
        fault = self._fault
        if fault.sound_calls:
            self._fault = replace(fault, sound_calls=fault.sound_calls - 1)
            return None
        if fault.once:
            self._fault = Fault()
        return FAULTS.get(fault.name)


async def main(port: int, model: Path, latency_s: float) -> None:
    end_of_turn = ChatFormat.load(model).end_of_turn_id
    engine = FaultyEngine(
        model, lambda prompt: [*sampled(prompt), end_of_turn], latency_s=latency_s, port=port
    )
    async with engine:
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])))
