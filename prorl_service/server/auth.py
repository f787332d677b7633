"""Who may use the control plane: everybody on this machine's loopback, or holders of one token.

The token is asked for before a request's body is read. What tells nothing is open to all: whether
the process lives, and the page that describes the interface. Metrics are not: they name engines,
tools and failures, and Prometheus can send a token (`authorization.credentials_file`).
"""

import hashlib
import hmac
import ipaddress
import os
import re
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from prorl_service.errors import ProRLError, Unauthorized
from prorl_service.server.errors import error_response

TOKEN_VARIABLE = "PRORL_TOKEN"
MIN_TOKEN_LENGTH = 16
OPEN_PATHS = frozenset({"/health", "/docs", "/redoc", "/openapi.json"})
OPEN_FOLDER = "/static-offline-docs/"


class RequireToken:
    """ASGI middleware; the outermost."""

    def __init__(self, app: ASGIApp, *, token: str) -> None:
        self._app = app
        self._digest = _digest(token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            scope["type"] == "lifespan"
            or _is_open(scope["path"])
            or self._may(Headers(scope=scope))
        ):
            await self._app(scope, receive, send)
            return
        refusal = Unauthorized(
            "this service wants its bearer token",
            hint=f"pass `token` to the client, or set {TOKEN_VARIABLE}",
        )
        await error_response(refusal)(scope, receive, send)

    def _may(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        # Digests, because compare_digest tells by its time how long its arguments are.
        return scheme.lower() == "bearer" and hmac.compare_digest(_digest(given), self._digest)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDER)


def take_token(file: Path | None, host: str) -> str | None:
    """From `file`, or from the environment, which forgets it: children need no secrets.

    Raises `ProRLError` when there is none and `host` can be reached from elsewhere, or when what
    there is cannot be a token.
    """
    given = os.environ.pop(TOKEN_VARIABLE, None)
    if file is not None:
        try:
            given = file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ProRLError(f"the token file {file} cannot be read: {error}") from None
    if given is None:
        if not _is_loopback(host):
            raise ProRLError(
                f"{host} can be reached by others, who could then run tasks here",
                hint=f"give a token: `--token-file FILE` or {TOKEN_VARIABLE}",
            )
        return None
    token = given.strip()
    if len(token) < MIN_TOKEN_LENGTH or not re.fullmatch(r"[A-Za-z0-9._~+/-]+=*", token):
        raise ProRLError(
            f"a token has at least {MIN_TOKEN_LENGTH} characters, of those that HTTP takes",
            hint="make one with `openssl rand -hex 32`",
        )
    return token


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
