"""A token that every request must bring, checked before the request's body is read."""

from typing import Protocol

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prorl_service.net.callers import Caller, TokenCallers


class Access(Protocol):
    """What of a server is open, and to whom."""

    def is_open(self, path: str) -> bool:
        """Returns whether the path needs no token."""

    def refusal(self, caller: Caller | None, method: str, path: str) -> ASGIApp | None:
        """Returns an answer for a request that the caller may not make, or that has no known
        token; None if it may."""


class _Removed(Exception):
    """The token of a request was removed while its answer was sent."""


class RequireBearer:
    """ASGI middleware that refuses requests without a known token, and those that their caller may
    not make. `scope["state"]["caller"]` says who calls. A stream ends when its token is removed."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        callers: TokenCallers,
        access: Access,
    ) -> None:
        self._app = app
        self._callers = callers
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._access.is_open(scope["path"]):
            return await self._app(scope, receive, send)
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        caller = self._callers.find(given) if scheme.lower() == "bearer" else None
        if caller is not None:
            scope.setdefault("state", {})["caller"] = caller

        async def send_while_known(message: Message) -> None:
            if message.get("more_body") and self._callers.find(given) != caller:
                raise _Removed
            await send(message)

        refusal = self._access.refusal(caller, scope.get("method", ""), scope["path"])
        if refusal is not None:
            return await refusal(scope, receive, send)
        try:
            await self._app(scope, receive, send_while_known)
        except _Removed:
            await send({"type": "http.response.body"})
