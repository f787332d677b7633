"""What a front says of its work, and how many nodes that calls for."""

import logging
import time
from collections.abc import Mapping

from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.ray import sizing
from prorl_service.ray.plan import NodePlan
from prorl_service.schemas import ServiceBehind, ServiceStatus, Stage

log = logging.getLogger(__name__)

ANSWER_S = 5.0


class FrontWatch:
    def __init__(self, token: str, nodes: NodePlan, slots: int) -> None:
        """`slots`: rollouts that keep a service busy, until the front knows better."""
        self._token = token
        self._nodes = nodes
        self._slots = slots
        self._front: tuple[str, AsyncRolloutClient] | None = None
        self._demands: list[sizing.Demand] = []
        self._status: ServiceStatus | None = None
        self.wanted = None if nodes.most is None else nodes.least
        """Nodes that the demand calls for; None: all that there are."""

    @property
    def running(self) -> int:
        """Rollouts at services."""
        return 0 if self._status is None else self._status.running.get(Stage.RUN, 0)

    @property
    def queued(self) -> int:
        """Rollouts that wait at the front."""
        return 0 if self._status is None else self._status.queues.get(Stage.INIT, 0)

    @property
    def behind(self) -> Mapping[str, ServiceBehind]:
        """What the front says of its services, by name."""
        return {one.name: one for one in self._status.services} if self._status else {}

    async def ask(self, url: str) -> None:
        """Asks the front, and counts the nodes wanted again."""
        front = await self._client(url)
        try:
            self._status = await front.status()
        except ServiceCallError as error:
            log.warning("the front does not say how busy it is: %s", error.message)
            return
        now = time.monotonic()
        self._demands.append(sizing.Demand(now, self.running + self.queued))
        self._demands = sizing.within(self._demands, now - sizing.WINDOW_S)
        if self._nodes.most is not None:
            self._size(now, self._nodes.most)

    def _size(self, now_s: float, most: int) -> None:
        before = self.wanted or 0
        known = (one.slots for one in self.behind.values() if one.takes_rollouts)
        self._slots = max(known, default=self._slots)
        self.wanted = sizing.wanted(
            self._demands,
            now_s=now_s,
            slots=self._slots,
            current=before,
            least=self._nodes.least,
            most=most,
        )
        if self.wanted != before:
            log.info("%d nodes are wanted, instead of %d", self.wanted, before)

    async def _client(self, url: str) -> AsyncRolloutClient:
        if self._front is not None and self._front[0] != url:
            await self._front[1].aclose()
            self._front = None
        if self._front is None:
            client = AsyncRolloutClient(url, token=self._token, retry_s=0, idle_s=ANSWER_S)
            self._front = url, client
        return self._front[1]
