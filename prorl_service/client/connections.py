"""Settings of connections, for both clients."""

import os
import ssl
from functools import cache
from typing import Any, Literal

import httpx

from prorl_service.errors import ProRLError
from prorl_service.net.credentials import authorization
from prorl_service.net.sockets import NOTICE_VANISHED
from prorl_service.schemas.arrays import PACKED_MEDIA_TYPE

Wire = Literal["packed", "json"]
Piece = bytes | memoryview
"""Part of a file to be sent."""


CA_FILE = "PRORL_CA_FILE"
"""Environment variable with a file of certificates, in PEM form, that are trusted, too."""


@cache
def _trusted(ca_file: str | None) -> ssl.SSLContext:
    """Returns a TLS context of this process: reading its certificates takes 40 ms. Raises
    `ProRLError` for a file that holds no certificate."""
    context = httpx.create_ssl_context(trust_env=False)
    if ca_file is not None:
        try:
            context.load_verify_locations(ca_file)
        except OSError as error:  # ssl.SSLError among them
            raise ProRLError(
                f"{CA_FILE}={ca_file} cannot be used: {error.strerror or error}",
                hint="name a file of certificates in PEM form, or unset it",
            ) from None
    return context


def transport() -> dict[str, Any]:
    """Returns the arguments of a client's transport. Raises `ProRLError`."""
    return {
        "verify": _trusted(os.environ.get(CA_FILE) or None),
        # The service closes connections idle for 5 s; the client must not reuse one at that moment.
        "limits": httpx.Limits(max_connections=None, keepalive_expiry=4),
        "trust_env": False,
        "socket_options": NOTICE_VANISHED,
    }


def settings(url: str, token: str | None, wire: Wire, training: str | None) -> dict[str, Any]:
    """Raises `ProRLError` if `url` is not an HTTP URL."""
    if not url.startswith(("http://", "https://")):
        raise ProRLError(f"{url!r} is not a service's URL", hint=f"write it as 'http://{url}'")
    try:
        httpx.URL(url)
    except httpx.InvalidURL as error:
        message = f"{url!r} is not a service's URL: {error}"
        raise ProRLError(message, hint="write it as 'http://HOST:PORT'") from None
    accept = f"{PACKED_MEDIA_TYPE}, application/json" if wire == "packed" else "application/json"
    headers = {"Accept": accept, **authorization(url, token)}
    if training is not None:
        headers["Prorl-Training"] = training
    return {"base_url": url, "headers": headers, "trust_env": False}
