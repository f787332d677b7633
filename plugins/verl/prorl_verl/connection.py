"""Connection of a trainer's process with the service: gateway, registration, and client.

Everything here lives in one event loop.
"""

import asyncio
import logging
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from verl.utils import hf_tokenizer
from verl.utils.fs import copy_to_local

from prorl_service.client import AsyncRolloutClient, RolloutClient, ServiceCallError
from prorl_service.client.gateway_lease import GatewayLease
from prorl_service.client.policy import HeldPolicy
from prorl_verl.checks import BadConfiguration
from prorl_verl.engines import Engines
from prorl_verl.pictures import Vision
from prorl_verl.settings import Settings, max_model_len, training_id

logger = logging.getLogger(__name__)


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
        options = settings.client_options(training=training)
        rollout = config["actor_rollout_ref"]["rollout"]
        most = settings.gateway.max_in_flight
        self._model = config["actor_rollout_ref"]["model"]
        self.vision = Vision.of(copy_to_local(self._model["path"]), _trusts(self._model))
        """That of the trainer's model; None if it has none."""
        self.engines = Engines(
            llm_client, max_in_flight=most, engine=rollout["name"], vision=self.vision
        )
        self.client = AsyncRolloutClient(**options)
        self.run_id = f"verl-{uuid.uuid4().hex[:12]}"
        self._lease = GatewayLease(
            self.engines,
            options,
            tokenizer=settings.tokenizer,
            max_calls=most,
            model=self._model["path"],
            max_model_len=max_model_len(config),
        )
        self.engines.on_change = self._lease.has_news.set

    async def start(self) -> Self:
        """Raises `ServiceCallError` when the service does not take the gateway, and
        `BadConfiguration`."""
        self._loop = asyncio.get_running_loop()
        await self._lease.start(self.settings.gateway.host, self.settings.gateway.port)
        try:
            await self._check_tokenizer()
        except BaseException:
            self._lease.end_renewal()
            await self._lease.stop()
            raise
        return self

    @property
    def url(self) -> str:
        """URL of the gateway."""
        return self._lease.url

    async def _check_tokenizer(self) -> None:
        """Raises `BadConfiguration`."""
        own = await asyncio.to_thread(_tokenizer, self._model)
        if problem := await self._lease.tokenizer_problem(own):
            raise BadConfiguration(problem, hint="prorl.tokenizer sets the service's tokenizer")

    def give_up(self, rollout_ids: Sequence[str], sampler_id: str | None) -> None:
        """Releases everything at the end of training; what the service does not learn ends with its
        lease. Call it from any thread except the loop's."""
        self._lease.end_renewal()
        try:
            with RolloutClient(**self.settings.client_options(retry_s=0)) as client:
                if rollout_ids:
                    client.cancel(rollout_ids)
                if sampler_id is not None:
                    client.delete_sampler(sampler_id)
                self._lease.remove(client)
        except ServiceCallError as error:
            logger.info("%s was not told that this trainer ends: %s", self.settings.url, error)
        asyncio.run_coroutine_threadsafe(self._lease.stop(), self._loop)


def _tokenizer(model: Mapping[str, Any]) -> Any:
    """Returns the trainer's tokenizer, as VeRL loads it."""
    path = copy_to_local(model.get("tokenizer_path") or model["path"])
    return hf_tokenizer(path, trust_remote_code=_trusts(model))


def _trusts(model: Mapping[str, Any]) -> bool:
    return bool(model.get("trust_remote_code"))
