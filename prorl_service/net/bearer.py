"""A token that every request must bring, checked before the request's body is read."""

from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from prorl_service.net.callers import Caller

Check = Callable[[Caller, str, str], ASGIApp | None]
"""Function of caller, method and path that returns a refusal, or None."""


class RequireBearer:
    """ASGI middleware that refuses requests without a known token, and those that their caller may
    not make. `scope["state"]["caller"]` says who calls."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        find: Callable[[str], Caller | None],
        is_open: Callable[[str], bool],
        refusal: ASGIApp,
        check: Check = lambda *_: None,
    ) -> None:
        """`find` returns the caller of a token. `is_open` returns whether a path needs none."""
        self._app = app
        self._find = find
        self._is_open = is_open
        self._refusal = refusal
        self._check = check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._chosen(scope)(scope, receive, send)

    def _chosen(self, scope: Scope) -> ASGIApp:
        if scope["type"] == "lifespan" or self._is_open(scope["path"]):
            return self._app
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        caller = self._find(given) if scheme.lower() == "bearer" else None
        if caller is None:
            return self._refusal
        scope.setdefault("state", {})["caller"] = caller
        refused = self._check(caller, scope.get("method", ""), scope["path"])
        return self._app if refused is None else refused
