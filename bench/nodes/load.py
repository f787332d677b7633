"""Groups in a closed loop through a front, and what they cost while they run."""

import asyncio
import os
import time
from dataclasses import dataclass

import psutil

from bench.front.drive import cpu_s
from bench.nodes.agent import GROUP_SIZE, group
from bench.nodes.engine import WaitingEngine
from bench.quiet import Quiet, Watch
from prorl_service.client import AsyncRolloutClient
from prorl_service.schemas import RolloutState

CALLS = 6
"""Model calls of a rollout."""
AHEAD = 1.5
"""Rollouts in flight, by slots: services always have more than they can run."""
WAIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Window:
    """Figures of the time between warm-up and end."""

    busy: float
    """Share of the slots' time that the engine's calls took, by their nominal length."""
    rollouts_per_s: float
    front_ms: float
    """CPU milliseconds of the front for a rollout."""
    all_ms: float
    """CPU milliseconds of all processes for a rollout: front, services, engine and this one."""
    quiet: Quiet


class Load:
    def __init__(self, client: AsyncRolloutClient, slots: int) -> None:
        self._client = client
        self._at_once = round(AHEAD * slots / GROUP_SIZE)
        self.ended = 0
        """Rollouts that are done."""

    async def run(self) -> None:
        """Runs groups until it is cancelled. Raises `RuntimeError` for a rollout that fails."""
        async with asyncio.TaskGroup() as workers:
            for _ in range(self._at_once):
                workers.create_task(self._work())

    async def _work(self) -> None:
        while True:
            submitted = group(CALLS)
            await self._client.submit([submitted])
            async for one, _ in self._client.parts(submitted.rollout_ids(), WAIT_S):
                if one.state is not RolloutState.DONE:
                    raise RuntimeError(f"{one.rollout_id} is {one.state}: {one.error}")
                self.ended += 1
            await self._client.acknowledge([submitted.group_id])


async def measure(
    front: tuple[str, int],
    engine: WaitingEngine,
    slots: int,
    *,
    warm_s: float,
    window_s: float,
    token: str | None = None,
) -> Window:
    """Loads `slots` slots. `front`: its URL and process id."""
    url, pid = front
    process = psutil.Process(pid)
    async with AsyncRolloutClient(url, token=token) as client:
        load = Load(client, slots)
        running = asyncio.create_task(load.run())
        await _seconds(warm_s, running)
        watch, began, served_s = Watch(), time.monotonic(), engine.served_s()
        used_s, ended = cpu_s(process), load.ended
        await _seconds(window_s, running)
        took_s = time.monotonic() - began
        rollouts, quiet = load.ended - ended, watch.quiet()
        window = Window(
            busy=(engine.served_s() - served_s) / took_s / slots,
            rollouts_per_s=rollouts / took_s,
            front_ms=1e3 * (cpu_s(process) - used_s) / rollouts,
            all_ms=1e3 * took_s * _own_cores(quiet) / rollouts,
            quiet=quiet,
        )
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return window


def _own_cores(quiet: Quiet) -> float:
    return quiet.cpu_share * (os.cpu_count() or 1) - quiet.other_load


async def _seconds(count: float, running: "asyncio.Task[None]") -> None:
    """Waits so long, or until the load fails."""
    await asyncio.wait([running], timeout=count)
    if running.done():
        running.result()
