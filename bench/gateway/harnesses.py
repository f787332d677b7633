"""Each installed harness does its work in bubblewrap, with scripted replies."""

import asyncio
import time

from prorl_service.errors import TaskError
from prorl_service.gateway.harnesses import store
from prorl_service.sandbox.kinds.bubblewrap import BubblewrapProvider
from tests.gateway.harnesses.scripts import WITH_TOOLS, assert_exact, figure, played, work

HARNESSES = (*WITH_TOOLS, "mini_swe_agent_text")


def measure() -> list[dict[str, object]]:
    return [row for name in HARNESSES if (row := asyncio.run(_row(name))) is not None]


async def _row(name: str) -> dict[str, object] | None:
    try:
        version = store.find(name).version
    except TaskError as error:
        print(f"{name}: not run: {error.message}: {error.hint}")
        return None
    started = time.perf_counter()
    async with BubblewrapProvider() as sandboxes:
        run = await played(name, work(name), sandboxes)
    assert_exact(run)
    return {
        "harness": name,
        "version": version,
        "reward": run.reward,
        "calls": figure(run, "calls"),
        "harness_segments": figure(run, "segments"),
        "seconds": time.perf_counter() - started,
    }
