"""Gateways of rollouts whose programs run elsewhere: one URL and one key for each.

An ASGI application for `/r/ROLLOUT/...`. A key opens one gateway. After RUN, a request with the
right key gets 503. Without it, every request gets 401, whether or not the rollout exists.
"""

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from prorl_service.gateway.app import error_response
from prorl_service.gateway.calls import Refused

PREFIX = "/r"
RETRY_S = 1
NOT_RUNNING = Refused(
    "the rollout is not running: ask again, or ask for its state", 503, "gateway_error"
)
WRONG_KEY = Refused("the API key is not the rollout's", 401, "authentication_error")


@dataclass(frozen=True, slots=True)
class Door:
    """The way to one gateway, while its rollout is in RUN."""

    application: ASGIApp
    key: str
    """API key that the program has to send."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the program has ended."""


class Doors:
    def __init__(self) -> None:
        self._open: dict[str, Door] = {}
        self._opened = asyncio.Event()
        """Set when the next door opens."""
        self._secret = secrets.token_bytes(32)

    @contextmanager
    def opened(self, rollout_id: str, application: ASGIApp) -> Iterator[Door]:
        key = self._key(rollout_id, secrets.token_urlsafe(12))
        door = self._open[rollout_id] = Door(application, key)
        self._opened.set()
        self._opened = asyncio.Event()
        try:
            yield door
        finally:
            del self._open[rollout_id]

    def find(self, rollout_id: str) -> Door | None:
        return self._open.get(rollout_id)

    async def find_within(self, rollout_id: str, wait_s: float) -> Door | None:
        """Returns the door as soon as it is open; None if it is not within `wait_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while rollout_id not in self._open:
                    await self._opened.wait()
        return self.find(rollout_id)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        rollout_id, _, rest = scope["path"].removeprefix(f"{PREFIX}/").partition("/")
        door, keys = self.find(rollout_id), _keys(Request(scope))
        if door is not None and any(_same(key, door.key) for key in keys):
            await door.application({**scope, "path": f"/{rest}", "root_path": ""}, receive, send)
        elif door is None and any(self._is_of(rollout_id, key) for key in keys):
            response = error_response(NOT_RUNNING, {"retry-after": str(RETRY_S)})
            await response(scope, receive, send)
        else:
            await error_response(WRONG_KEY)(scope, receive, send)

    def _key(self, rollout_id: str, nonce: str) -> str:
        """Returns a key that is known again when its door has been closed."""
        text = f"{nonce}.{rollout_id}".encode()
        return f"{nonce}.{hmac.new(self._secret, text, hashlib.sha256).hexdigest()}"

    def _is_of(self, rollout_id: str, key: str) -> bool:
        """Returns whether it is, or was, a key of the rollout's."""
        return _same(key, self._key(rollout_id, key.partition(".")[0]))


def _keys(request: Request) -> list[str]:
    """Returns the keys of both headers: some clients send a key of another service in one."""
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    bearers = [bearer.strip()] if scheme.lower() == "bearer" else []
    return [request.headers.get("x-api-key", ""), *bearers]


def _same(given: str, key: str) -> bool:
    return hmac.compare_digest(given.encode(), key.encode())
