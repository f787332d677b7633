"""Recordings of what a harness sends, to test the gateway with, without the harness.

`recorded` puts a recorder around each gateway that agents make in this process.

A recording holds no text of the harness: what it says itself, its prompts and the descriptions of
its tools, becomes filler of the same length. What the policy said, and texts of tools, stay.
"""

import hashlib
import json
import lzma
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Literal
from unittest.mock import patch

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prorl_service.agents.harness import turns
from prorl_service.gateway.app import application
from prorl_service.gateway.calls import CallReply, CallRequest
from prorl_service.gateway.rollout import RolloutGateway

SENT: ContextVar[tuple[str, bytes]] = ContextVar("sent")
"""Path and body of the request at work."""

LONGEST_KEPT = 60
"""Longest text that is kept as it is: names, ids, kinds."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and the turn that answered it."""

    path: str
    body: dict[str, Any]
    is_subagent: bool
    turn: str
    """Name of the turn, which the ids of its reply are made of."""
    reply: str
    """Text that was sampled."""


@dataclass(slots=True)
class Recorder:
    """Collects exchanges, in the order of their turns."""

    exchanges: list[Exchange] = field(default_factory=list)

    def save(self, file: Path, facts: Mapping[str, Any]) -> None:
        """Writes a JSON document: `facts`, such as the harness and its version, and exchanges. A
        file whose name ends in `.xz` is packed."""
        replies = [one.reply for one in self.exchanges]
        found = [asdict(one) | {"body": _disguised(one.body, replies)} for one in self.exchanges]
        with _open(file, "wt") as opened:
            json.dump({**facts, "exchanges": found}, opened, indent=1)


@contextmanager
def recorded() -> Iterator[Recorder]:
    recorder = Recorder()

    class RecordedGateway(RolloutGateway):
        async def _sampled(self, request: CallRequest, begun: CallReply, held: int) -> CallReply:
            reply = await super()._sampled(request, begun, held)
            path, body = SENT.get()
            said = (request.is_subagent, reply.name, self._rollout.turns[-1].text)
            recorder.exchanges.append(Exchange(path, json.loads(body), *said))
            return reply

    def recording_application(gateway: RolloutGateway) -> ASGIApp:
        return _remembers_request(application(gateway))

    with (
        patch.object(turns, "RolloutGateway", RecordedGateway),
        patch.object(turns, "application", recording_application),
    ):
        yield recorder


def _remembers_request(app: ASGIApp) -> ASGIApp:
    async def remembering(scope: Scope, receive: Receive, send: Send) -> None:
        body = await Request(scope, receive).body()
        SENT.set((scope["path"], body))
        given: list[Message] = [{"type": "http.request", "body": body}]

        async def again() -> Message:
            return given.pop() if given else await receive()

        await app(scope, again, send)

    return remembering


def read(file: Path) -> tuple[dict[str, Any], list[Exchange]]:
    """Returns the facts and the exchanges of a recording."""
    with _open(file, "rt") as opened:
        facts = json.load(opened)
    return facts, [Exchange(**one) for one in facts.pop("exchanges")]


def _open(file: Path, mode: Literal["rt", "wt"]) -> IO[str]:
    return lzma.open(file, mode) if file.suffix == ".xz" else file.open(mode)


def _disguised(value: Any, replies: list[str]) -> Any:
    match value:
        case str():
            return value if _is_kept(value, replies) else _filler(value)
        case list():
            return [_disguised(one, replies) for one in value]
        case dict():
            return {name: _disguised(one, replies) for name, one in value.items()}
    return value


def _is_kept(text: str, replies: list[str]) -> bool:
    if len(text) <= LONGEST_KEPT:
        return True
    # Arguments come back written anew, as JSON in JSON.
    plain = text.replace('\\"', '"').strip()
    return any(plain in reply or text.strip() in reply for reply in replies)


def _filler(text: str) -> str:
    """Returns words of the same total length that tell nothing but whether texts are equal."""
    words = "".join(_words(text, len(text)))
    return words[: len(text)]


def _words(text: str, length: int) -> Iterator[str]:
    state = hashlib.sha256(text.encode()).hexdigest()
    for number in range(length // 8 + 1):
        yield state[number * 7 % 57 :][:7] + " "
