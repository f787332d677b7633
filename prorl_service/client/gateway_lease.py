"""A trainer's gateway as a backend of the service, by a lease that is renewed while this process
lives: a restarted service learns of the gateway again, one whose trainer died forgets it.

Everything lives in one event loop. Knows no trainer.
"""

import asyncio
import logging
import secrets
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Self
from urllib.parse import urlsplit

from prorl_service.client.async_http import AsyncRolloutClient
from prorl_service.client.engine_gateway import Gateway, TrainersEngines
from prorl_service.client.errors import ServiceCallError
from prorl_service.client.http import RolloutClient
from prorl_service.schemas.tokenizer_digest import differing_tokenizer

logger = logging.getLogger(__name__)

BACKEND_LEASE_S = 60.0
RENEW_S = 10.0
FIRST_CONTACT_S = 30.0
LOOPBACK = ("localhost", "127.0.0.1")


class GatewayLease:
    """Start it before any rollout."""

    def __init__(
        self,
        engines: TrainersEngines,
        client_options: Mapping[str, Any],
        *,
        tokenizer: str,
        max_calls: int | None = None,
        **of_gateway: Any,
    ) -> None:
        """`client_options`: arguments of clients of the service. `tokenizer`: where the service
        finds the model's. `of_gateway`: `Gateway`'s."""
        self.has_news = asyncio.Event()
        """Set it to have the service look at the engines soon."""
        self._options = client_options
        self._tokenizer, self._max_calls = tokenizer, max_calls
        self._api_key = secrets.token_urlsafe(32)
        """Key of the gateway: new at each start, and known only to the service."""
        self._gateway = Gateway(engines, root=tokenizer, api_key=self._api_key, **of_gateway)

    async def start(self, host: str | None = None, port: int = 0) -> Self:
        """`host`: the gateway's, towards the service; None finds it out. Raises `ServiceCallError`
        when the service does not take the gateway."""
        if host is None:
            host = await asyncio.to_thread(address_towards, self._options["url"])
        bind = host if host in LOOPBACK else "::" if host.startswith("[") else "0.0.0.0"
        self.url = f"http://{host}:{await self._gateway.start(bind, port)}"
        try:
            await self.register(FIRST_CONTACT_S)
        except BaseException:
            await self._gateway.stop()
            raise
        self._renewal = asyncio.create_task(self._renew())
        logger.info("%s serves %s", self.url, self._options["url"])
        return self

    async def register(self, retry_s: float) -> None:
        """Adds the gateway, which is in front of all engines, or renews its lease."""
        async with AsyncRolloutClient(**{**self._options, "retry_s": retry_s}) as client:
            await client.add_backend(
                self.url,
                self._tokenizer,
                api_key=self._api_key,
                lease_s=BACKEND_LEASE_S,
                max_calls=self._max_calls,
            )

    async def tokenizer_problem(self, own: Any) -> str | None:
        """Returns why the trainer's own tokenizer is not the service's; None if it is. Raises
        `ServiceCallError`."""
        async with AsyncRolloutClient(**self._options) as client:
            status = await client.status()
        return differing_tokenizer(own, status.tokenizer_digest)

    async def _renew(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(RENEW_S):
                    await self.has_news.wait()
            self.has_news.clear()
            try:
                await self.register(0)
            except ServiceCallError as error:
                logger.warning("%s: the gateway's lease is not renewed: %s", self.url, error)

    @property
    def backend_id(self) -> str:
        """Name of the gateway among the service's backends."""
        return self.url.partition("://")[2]

    def end_renewal(self) -> None:
        """Call it from any thread, before `remove`."""
        self._renewal.get_loop().call_soon_threadsafe(self._renewal.cancel)

    def remove(self, client: RolloutClient) -> None:
        """Has the service forget the gateway. Raises `ServiceCallError`."""
        client.remove_backend(self.backend_id)

    async def stop(self) -> None:
        await self._gateway.stop()


def address_towards(url: str) -> str:
    """Returns this host's address on the interface that leads to a URL. Sends nothing. Raises
    `OSError`."""
    target = urlsplit(url)
    if target.hostname in LOOPBACK:
        return LOOPBACK[1]
    found = socket.getaddrinfo(target.hostname, target.port or 80, type=socket.SOCK_DGRAM)
    family, kind, _, _, address = found[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        own = str(probe.getsockname()[0])
    return f"[{own}]" if family is socket.AF_INET6 else own
