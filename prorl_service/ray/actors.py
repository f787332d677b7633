"""Actors that keep one process each: a service on its node, and the front.

An actor of Ray that ends is started again by Ray, on the same node; its process ended with it.
"""

import asyncio
import logging
import os

from prorl_service.ray.keeper import Keeper
from prorl_service.ray.plan import FRONT, Report, RunPlan
from prorl_service.utils import logs

log = logging.getLogger(__name__)

WAIT_S = 30.0
"""Most seconds that a question for news waits."""


class KeepingActor:
    """Keeps the front, or the service of one node."""

    def __init__(self, plan: RunPlan, name: str, address: str) -> None:
        """`name`: `FRONT`, or that of a service. Must be called in a running event loop, as Ray
        does for actors with coroutines."""
        logs.configure("text")
        # On this node: its directories may differ from those of the supervisor's.
        process = plan.front(address) if name == FRONT else plan.service(name, address)
        self._keeper = Keeper(process)
        self._running = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._keeper.run()
        except BaseException:
            log.critical("the actor ends, for Ray to start it again", exc_info=True)
            os._exit(1)

    async def report(self, seen: int) -> Report:
        """Returns the state of the process, as soon as it is not the one numbered `seen`."""
        return await self._keeper.report(seen, WAIT_S)

    async def stop(self) -> None:
        """Drains the process, and returns when it has ended."""
        await self._keeper.stop()
        await self._running
