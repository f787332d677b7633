"""A browser is not a client: requests from pages of other sites are refused.

A page can send requests to every address that its reader's machine reaches, loopback included. Two
headers, which no page can forge, give it away. `Origin` names the site of a page that sends more
than a plain GET. `Host` has the name by which the browser reached this service: a site whose own
name resolves to this address ("DNS rebinding") has the same origin, but can send only its own name.

`Host` is checked only on loopback without a secret, where names are few. A service with a secret
may be reached by any name, and no page knows the secret.
"""

from collections.abc import Callable, Collection
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from prorl_service.errors import Forbidden
from prorl_service.net.credentials import DEFAULT_PORTS, is_loopback


class RefuseForeignPages:
    """ASGI middleware for HTTP and WebSockets; must be the outermost."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        allowed_hosts: Collection[str] = (),
        checks_host: bool,
        response: Callable[[Forbidden], ASGIApp],
    ) -> None:
        """`allowed_hosts`: names of this service or of pages, in addition to those of loopback.
        `response` sends a refusal in the service's own format."""
        self._app = app
        self._response = response
        self._allowed_hosts = {name.lower() for name in allowed_hosts}
        self._checks_host = checks_host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = None if scope["type"] == "lifespan" else self._refusal(Headers(scope=scope))
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await self._response(refusal)(scope, receive, send)

    def _refusal(self, headers: Headers) -> Forbidden | None:
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        host = _split(f"//{hosts[0]}") if len(hosts) == 1 else None
        if self._checks_host and not (host and self._is_own_name(host.hostname)):
            return Forbidden(
                f"this service is not called {', '.join(hosts)[:200] or 'nothing'!r}",
                hint="use localhost, or start it with `--allow-host NAME`",
            )
        if not all(self._may_ask(_split(origin), host) for origin in origins):
            return Forbidden(
                f"pages of {', '.join(origins)[:200]!r} may not use this service",
                hint="to allow a site, start it with `--allow-host NAME`",
            )
        return None

    def _is_own_name(self, name: str | None) -> bool:
        return name is not None and (is_loopback(name) or name in self._allowed_hosts)

    def _may_ask(self, origin: SplitResult | None, host: SplitResult | None) -> bool:
        if origin is None or origin.hostname is None:  # "null", too
            return False
        if origin.hostname in self._allowed_hosts:
            return True
        port = DEFAULT_PORTS.get(origin.scheme)
        return (
            host is not None
            and origin.hostname == host.hostname
            and (origin.port or port) == (host.port or port)
        )


def _split(address: str) -> SplitResult | None:
    """Returns None unless the address is only scheme, name and port."""
    try:
        split = urlsplit(address)
        is_plain = not (split.path or split.query or split.fragment or "@" in split.netloc)
        return split if is_plain and split.port != 0 else None
    except ValueError:
        return None
