"""Access to the control plane: only for holders of one token.

The token is checked before a request's body is read. What reveals nothing is open to all: whether
the process lives, the page that describes the interface, and the page for people, without its data.
Metrics are not: they name engines, tools and failures, and Prometheus can send a token
(`authorization.credentials_file`).
"""

import os
from pathlib import Path

from prorl_service.errors import ProRLError, Unauthorized
from prorl_service.net.credentials import TOKEN_VARIABLE, checked_token, is_loopback, make_own_token
from prorl_service.server.errors import error_response

OPEN_PATHS = frozenset({"/", "/health", "/docs", "/redoc", "/openapi.json"})
OPEN_FOLDERS = ("/page/", "/static-offline-docs/", "/r/")
"""Beginnings of paths that need no token; gateways of rollouts (`/r/`) have keys of their own."""


REFUSAL = error_response(
    Unauthorized(
        "this service requires its own bearer token, and the request has none or another's",
        hint=f"pass `token` to the client, or set {TOKEN_VARIABLE}; where the service runs, "
        "`prorl token` prints the token of your own services",
    )
)


def is_open(path: str) -> bool:
    """Returns whether the path needs no token."""
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDERS)


def take_token(file: Path | None, host: str, *, is_off: bool = False) -> str | None:
    """Returns the token in `file`, or in the environment, or else of this user's services; None if
    it `is_off`. Removes it from the environment: children need no secrets.

    Raises `ProRLError` if it `is_off` though `host` can be reached from elsewhere, and for what
    cannot be a token.
    """
    given = os.environ.pop(TOKEN_VARIABLE, None)
    if is_off:
        if file is not None:
            raise ProRLError("--token-file and --no-token contradict each other")
        if not is_loopback(host):
            raise ProRLError(
                f"{host} can be reached by others, who could then run tasks here",
                hint="leave out --no-token, or listen on 127.0.0.1",
            )
        return None
    if file is not None:
        try:
            given = file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ProRLError(f"the token file {file} cannot be read: {error}") from None
    return make_own_token() if given is None else checked_token(given, "the token")
