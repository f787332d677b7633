"""A token that every request must bring, checked before the request's body is read."""

from typing import Protocol

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from prorl_service.net.callers import Caller, TokenCallers


class Access(Protocol):
    """What of a server is open, and to whom."""

    def is_open(self, path: str) -> bool:
        """Returns whether the path needs no token."""

    def refusal(self, caller: Caller | None, method: str, path: str) -> ASGIApp | None:
        """Returns an answer for a request that the caller may not make, or that has no known
        token; None if it may."""


class RequireBearer:
    """ASGI middleware that refuses requests without a known token, and those that their caller may
    not make. `scope["state"]["caller"]` says who calls."""

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
        await self._chosen(scope)(scope, receive, send)

    def _chosen(self, scope: Scope) -> ASGIApp:
        if scope["type"] == "lifespan" or self._access.is_open(scope["path"]):
            return self._app
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        caller = self._callers.find(given) if scheme.lower() == "bearer" else None
        if caller is not None:
            scope.setdefault("state", {})["caller"] = caller
        refusal = self._access.refusal(caller, scope.get("method", ""), scope["path"])
        return self._app if refusal is None else refusal
