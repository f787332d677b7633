"""A trainer's process and the service: the gateway, its registration, and the client.

Everything here lives in one event loop. The registration is a lease, renewed while this process
lives: a service that was restarted learns of the gateway again, one whose trainer died forgets it.
"""

import asyncio
import logging
import uuid
from collections.abc import Sequence
from typing import Any, Self
from urllib.parse import urlsplit

import ray

from prorl_service.client import AsyncRolloutClient, RolloutClient, ServiceCallError
from prorl_verl.engines import Engines
from prorl_verl.gateway import Gateway
from prorl_verl.settings import Settings, max_model_len

logger = logging.getLogger(__name__)

BACKEND_LEASE_S = 60.0
RENEW_S = 10.0
FIRST_CONTACT_S = 30.0
LOOPBACK = ("localhost", "127.0.0.1")


class Connection:
    """To be started before anything else."""

    def __init__(self, config: Any, settings: Settings, llm_client: Any) -> None:
        self.settings = settings
        self.engines = Engines(llm_client, max_in_flight=settings.gateway.max_in_flight)
        self.client = AsyncRolloutClient(
            settings.url, token=settings.token(), retry_s=settings.deadline_s
        )
        self.run_id = f"verl-{uuid.uuid4().hex[:12]}"
        self._gateway = Gateway(
            self.engines,
            model=config["actor_rollout_ref"]["model"]["path"],
            root=settings.tokenizer,
            max_model_len=max_model_len(config),
        )

    async def start(self) -> Self:
        """Raises `ServiceCallError` when the service does not take the gateway."""
        host = self._host()
        bind = host if host in LOOPBACK else "0.0.0.0"
        port = await self._gateway.start(bind, self.settings.gateway.port)
        self.url = f"http://{host}:{port}"
        async with self._new_client(FIRST_CONTACT_S) as client:
            await self._register(client)
        self._renewal = asyncio.create_task(self._renew())
        logger.info("%s serves %s", self.url, self.settings.url)
        return self

    def _host(self) -> str:
        """A service that is on this machine needs no address that others can reach."""
        service = urlsplit(self.settings.url).hostname or ""
        own = LOOPBACK[1] if service in LOOPBACK else ray.util.get_node_ip_address()
        return self.settings.gateway.host or own

    async def _register(self, client: AsyncRolloutClient) -> None:
        await client.add_backend(
            self.url,
            self.settings.tokenizer,
            lease_s=BACKEND_LEASE_S,
            max_calls=self.settings.gateway.max_in_flight,
        )

    async def _renew(self) -> None:
        async with self._new_client(retry_s=0) as client:
            while True:
                await asyncio.sleep(RENEW_S)
                try:
                    await self._register(client)
                except ServiceCallError as error:
                    logger.warning("%s: the gateway's lease is not renewed: %s", self.url, error)

    def _new_client(self, retry_s: float) -> AsyncRolloutClient:
        return AsyncRolloutClient(self.settings.url, token=self.settings.token(), retry_s=retry_s)

    def give_up(self, rollout_ids: Sequence[str], sampler_id: str | None) -> None:
        """From any thread but the loop's, at the end of training; what cannot be told ends with its
        lease."""
        self._renewal.get_loop().call_soon_threadsafe(self._renewal.cancel)
        token = self.settings.token()
        try:
            with RolloutClient(self.settings.url, token=token, retry_s=0) as client:
                if rollout_ids:
                    client.cancel(rollout_ids)
                if sampler_id is not None:
                    client.delete_sampler(sampler_id)
                client.remove_backend(self.url.split("://", 1)[1])
        except ServiceCallError as error:
            logger.info("%s was not told that this trainer ends: %s", self.settings.url, error)
