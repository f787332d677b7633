"""Results that stay at the services that made them until they are acknowledged.

The front's journal has the summary of each, and a reference to the service. Callers read the
content there, or through the front. A service that is lost takes its results along; `executor` has
those made again that are asked for.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Literal

import orjson

from prorl_service.client import ServiceCallError
from prorl_service.front.services import Services
from prorl_service.rollouts import references
from prorl_service.rollouts.journal import Journal
from prorl_service.rollouts.record import EndedRollout, joined
from prorl_service.schemas import Rollout, RolloutState

log = logging.getLogger(__name__)

Durability = Literal["replica", "node"]
FETCH_S = 60.0
"""Longest wait for a result that its service has."""


class HeldResults:
    def __init__(self, services: Services, journal: Journal) -> None:
        self._services = services
        self._journal = journal

    def located(self, ended: EndedRollout) -> EndedRollout | None:
        """Returns the rollout's summary with the address of its service; None while that does not
        answer."""
        service = self._services.open_one(ended.holder or "")
        if service is None:
            return None
        location = b',"location":' + orjson.dumps(service.url) + b"}"
        return EndedRollout(ended.summary[:-1] + location, ended.summary)

    async def fetch(self, rollout_id: str, ended: EndedRollout) -> EndedRollout | None:
        """Returns the whole rollout; None if its service is lost, or has lost the rollout. A
        cancelled one, which nobody wants made again, is returned without the lost content."""
        summary = Rollout.model_validate_json(ended.summary)
        whole = await self._read(rollout_id, ended, summary)
        if whole is None and summary.state is RolloutState.CANCELLED:
            whole = EndedRollout(ended.summary, ended.summary)
        return whole

    async def _read(
        self, rollout_id: str, ended: EndedRollout, summary: Rollout
    ) -> EndedRollout | None:
        while (service := await self._services.find(ended.holder or "", 0)) is not None:
            try:
                async with aclosing(service.questions.parts([rollout_id], FETCH_S)) as parts:
                    found, content = await anext(parts)
                is_it = found.state is summary.state and found.reward == summary.reward
                whole = EndedRollout(joined(ended.summary, content), ended.summary)
                return whole if is_it else None
            except ServiceCallError as error:
                if error.http_status == HTTPStatus.NOT_FOUND:
                    return None
                log.warning("%s was not read at service %s: %s", rollout_id, service.name, error)
                self._services.suspect(service)
        return None

    async def acknowledge(self, group_ids: Sequence[str]) -> None:
        """Lets the services forget their results of these groups. Call it before the journal
        forgets the groups."""
        held = await self._journal.read(lambda db: references.holders(db, group_ids))
        asking = (self._services.acknowledge(name, sorted(ids)) for name, ids in held.items())
        await asyncio.gather(*asking)
