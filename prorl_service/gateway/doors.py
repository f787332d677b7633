"""Gateways of rollouts whose programs run elsewhere: one URL and one key for each.

An ASGI application for `/r/ROLLOUT/...`. A program that comes before its rollout's RUN is asked to
come again; what it is told as a key opens nothing else.
"""

import asyncio
import hmac
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

PREFIX = "/r"
RETRY_S = 1


@dataclass(frozen=True, slots=True)
class Door:
    """The way to one gateway, while its rollout is in RUN."""

    application: ASGIApp
    key: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    """API key that the program has to send."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the program has ended."""


class Doors:
    def __init__(self) -> None:
        self._open: dict[str, Door] = {}

    @contextmanager
    def opened(self, rollout_id: str, application: ASGIApp) -> Iterator[Door]:
        door = self._open[rollout_id] = Door(application)
        try:
            yield door
        finally:
            del self._open[rollout_id]

    def find(self, rollout_id: str) -> Door | None:
        return self._open.get(rollout_id)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        rollout_id, _, rest = scope["path"].removeprefix(f"{PREFIX}/").partition("/")
        door = self.find(rollout_id)
        if door is None:
            refusal = JSONResponse(
                _error("the rollout is not running: ask again, or ask for its state"),
                status_code=503,
                headers={"retry-after": str(RETRY_S)},
            )
            await refusal(scope, receive, send)
        elif not _has_key(Request(scope), door.key):
            await JSONResponse(_error("the API key is not the rollout's"), 401)(
                scope, receive, send
            )
        else:
            await door.application({**scope, "path": f"/{rest}", "root_path": ""}, receive, send)


def _has_key(request: Request, key: str) -> bool:
    bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
    given = request.headers.get("x-api-key", bearer)
    return hmac.compare_digest(given.encode(), key.encode())


def _error(message: str) -> dict[str, object]:
    return {"type": "error", "error": {"type": "gateway_error", "message": message}}
