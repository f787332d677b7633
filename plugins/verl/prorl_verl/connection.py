"""Connection of a trainer's process with the service: gateway, registration, and client.

Everything here lives in one event loop. The registration is a lease, renewed while this process
lives: a restarted service learns of the gateway again, one whose trainer died forgets it.
"""

import asyncio
import logging
import secrets
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import ray
from verl.utils import hf_tokenizer
from verl.utils.fs import copy_to_local

from prorl_service.client import AsyncRolloutClient, RolloutClient, ServiceCallError
from prorl_service.client.policy import HeldPolicy
from prorl_service.schemas.tokenizer_digest import differing_tokenizer
from prorl_verl.checks import BadConfiguration
from prorl_verl.engines import Engines
from prorl_verl.gateway import Gateway
from prorl_verl.settings import Settings, max_model_len, training_id

logger = logging.getLogger(__name__)

BACKEND_LEASE_S = 60.0
RENEW_S = 10.0
FIRST_CONTACT_S = 30.0
LOOPBACK = ("localhost", "127.0.0.1")


def hold_policy(config: Mapping[str, Any], settings: Settings) -> HeldPolicy:
    """Claims the service's policy for this training, or for that whose checkpoints it continues
    from. Raises `PolicyTaken`, `ServiceCallError`."""
    return HeldPolicy(
        settings.url,
        training_id(config),
        token=settings.token(),
        take_over=settings.take_over,
        kept_in=Path(config["trainer"]["default_local_dir"]),
    ).claim()


class Connection:
    """Connection with the service. Start it before anything else."""

    def __init__(
        self, config: Any, settings: Settings, llm_client: Any, training: str | None
    ) -> None:
        """`training`: key of the training that holds the policy."""
        self.settings = settings
        self._training = training
        self.engines = Engines(llm_client, max_in_flight=settings.gateway.max_in_flight)
        self.client = self._new_client()
        self.run_id = f"verl-{uuid.uuid4().hex[:12]}"
        self._api_key = secrets.token_urlsafe(32)
        """Key of the gateway: new at each start, and known only to the service."""
        self._model = config["actor_rollout_ref"]["model"]
        self._gateway = Gateway(
            self.engines,
            model=self._model["path"],
            root=settings.tokenizer,
            max_model_len=max_model_len(config),
            api_key=self._api_key,
            engine=config["actor_rollout_ref"]["rollout"]["name"],
        )

        self._has_news = asyncio.Event()
        self.engines.on_change = self._has_news.set

    async def start(self) -> Self:
        """Raises `ServiceCallError` when the service does not take the gateway."""
        host = self._host()
        bind = host if host in LOOPBACK else "0.0.0.0"
        port = await self._gateway.start(bind, self.settings.gateway.port)
        self.url = f"http://{host}:{port}"
        try:
            async with self._new_client(FIRST_CONTACT_S) as client:
                await self._register(client)
                await self._check_tokenizer(client)
        except BaseException:
            await self._gateway.stop()
            raise
        self._renewal = asyncio.create_task(self._renew())
        logger.info("%s serves %s", self.url, self.settings.url)
        return self

    def _host(self) -> str:
        """Returns the gateway's host; loopback is enough for a service on this machine."""
        is_here = urlsplit(self.settings.url).hostname in LOOPBACK
        own = LOOPBACK[1] if is_here else ray.util.get_node_ip_address()
        return self.settings.gateway.host or own

    async def _register(self, client: AsyncRolloutClient) -> None:
        """Adds the gateway, which is in front of all engines."""
        await client.add_backend(
            self.url,
            self.settings.tokenizer,
            api_key=self._api_key,
            lease_s=BACKEND_LEASE_S,
            max_calls=self.settings.gateway.max_in_flight,
        )

    async def _check_tokenizer(self, client: AsyncRolloutClient) -> None:
        """Raises `BadConfiguration`."""
        own = await asyncio.to_thread(_tokenizer, self._model)
        status = await client.status()
        if problem := differing_tokenizer(own, status.tokenizer_digest):
            raise BadConfiguration(problem, hint="prorl.tokenizer sets the service's tokenizer")

    async def _renew(self) -> None:
        """Renews the lease, also when engines are lent or back, so that the service looks then."""
        async with self._new_client(retry_s=0) as client:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(RENEW_S):
                        await self._has_news.wait()
                self._has_news.clear()
                try:
                    await self._register(client)
                except ServiceCallError as error:
                    logger.warning("%s: the gateway's lease is not renewed: %s", self.url, error)

    def _new_client(self, retry_s: float | None = None) -> AsyncRolloutClient:
        options = self.settings.client_options(retry_s=retry_s, training=self._training)
        return AsyncRolloutClient(**options)

    def give_up(self, rollout_ids: Sequence[str], sampler_id: str | None) -> None:
        """Releases everything at the end of training; what the service does not learn ends with its
        lease. Call it from any thread except the loop's."""
        loop = self._renewal.get_loop()
        loop.call_soon_threadsafe(self._renewal.cancel)
        try:
            with RolloutClient(**self.settings.client_options(retry_s=0)) as client:
                if rollout_ids:
                    client.cancel(rollout_ids)
                if sampler_id is not None:
                    client.delete_sampler(sampler_id)
                client.remove_backend(self.url.split("://", 1)[1])
        except ServiceCallError as error:
            logger.info("%s was not told that this trainer ends: %s", self.settings.url, error)
        asyncio.run_coroutine_threadsafe(self._gateway.stop(), loop)


def _tokenizer(model: Mapping[str, Any]) -> Any:
    """Returns the trainer's tokenizer, as VeRL loads it."""
    path = copy_to_local(model.get("tokenizer_path") or model["path"])
    return hf_tokenizer(path, trust_remote_code=bool(model.get("trust_remote_code")))
