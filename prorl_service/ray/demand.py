"""A front's demand: its open work, and the number of nodes that it needs.

The number grows to the mean demand of the last minute, and shrinks only to what the last minute's
highest demand would fill: a short dip removes no node, and a number between two does not flap.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean

from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.ray.options import NodeOptions
from prorl_service.schemas import ServiceBehind, ServiceStatus, Stage

log = logging.getLogger(__name__)

ANSWER_S = 5.0
WINDOW_S = 60.0


class FrontWatch:
    def __init__(self, token: str, nodes: NodeOptions, slots: int) -> None:
        """`slots`: rollouts that keep a service busy, until the front knows better."""
        self._token = token
        self._nodes = nodes
        self._slots = slots
        self._demands: list[Demand] = []
        self._status: ServiceStatus | None = None
        self.wanted = None if nodes.max_nodes is None else nodes.min_nodes
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
        try:
            async with AsyncRolloutClient(
                url, token=self._token, retry_s=0, idle_s=ANSWER_S
            ) as front:
                self._status = await front.status()
        except ServiceCallError as error:
            log.warning("the front does not say how busy it is: %s", error.message)
            return
        now = time.monotonic()
        self._demands.append(Demand(now, self.running + self.queued))
        self._demands = within(self._demands, now)
        if self._nodes.max_nodes is not None:
            self._size(self._nodes.max_nodes)

    def _size(self, most: int) -> None:
        before = self.wanted or 0
        known = (one.slots for one in self.behind.values() if one.takes_rollouts)
        self._slots = max(known, default=self._slots)
        self.wanted = nodes_wanted(
            [one.rollouts for one in self._demands],
            slots=self._slots,
            current=before,
            least=self._nodes.min_nodes,
            most=most,
        )
        if self.wanted != before:
            log.info("%d nodes are wanted, instead of %d", self.wanted, before)


# --- the number of nodes: pure, the caller brings the clock --------------------------------------


@dataclass(frozen=True, slots=True)
class Demand:
    """Rollouts that run or could run at a time."""

    at_s: float
    rollouts: int


def within(demands: Sequence[Demand], now_s: float) -> list[Demand]:
    """Returns the demands of the last minute."""
    return [one for one in demands if one.at_s > now_s - WINDOW_S]


def nodes_wanted(
    rollouts: Sequence[int], *, slots: int, current: int, least: int, most: int
) -> int:
    """Returns a number of nodes from `least` to `most`.

    `rollouts`: demands of the last minute, at equal distances; `slots`: rollouts that keep a node
    busy; `current`: nodes wanted before.
    """
    grown = max(current, ceil(fmean(rollouts) / slots))
    return min(max(min(grown, ceil(max(rollouts) / slots)), least), most)
