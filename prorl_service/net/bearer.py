"""A secret that every request must bring, checked before the request's body is read."""

import hashlib
import hmac
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send


class RequireBearer:
    """ASGI middleware that refuses requests without the secret."""

    def __init__(
        self, app: ASGIApp, *, secret: str, is_open: Callable[[str], bool], refusal: ASGIApp
    ) -> None:
        """`is_open` returns whether a path needs no secret."""
        self._app = app
        self._digest = _digest(secret)
        self._is_open = is_open
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        may = (
            scope["type"] == "lifespan"
            or self._is_open(scope["path"])
            or self._holds_secret(Headers(scope=scope))
        )
        await (self._app if may else self._refusal)(scope, receive, send)

    def _holds_secret(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        # Digests, because compare_digest leaks the length of its arguments by its time.
        return scheme.lower() == "bearer" and hmac.compare_digest(_digest(given), self._digest)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
