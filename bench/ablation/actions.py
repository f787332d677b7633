"""Times of single actions, one at a time: bash and IPython in a bubblewrap sandbox, and the socket.

tmux runs in such a sandbox, too, and is polled as OpenHands does (`bench.tools.tmux`). These parts
have no rows of groups per second: a gateway starts a Python process for each kernel, and sixty-four
of them are more than a small machine has; the socket's share of a rollout is far below the noise.
"""

import asyncio
import shlex
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median, quantiles

from bench.tools import kernels, rungs, sockets, tmux
from bench.tools.timing import Action, Effort, finished, take_turns
from prorl_service.sandbox.base import Sandbox
from prorl_service.sandbox.kinds.bubblewrap import BubblewrapProvider

BASH, TMUX = "bash", "bash, tmux as OpenHands"
IPYTHON, GATEWAY = "IPython", "IPython, kernel gateway"
FULL = Effort(rounds=5, turn_actions=20, turn_s=4.0, start_rounds={}, crowd_s=0.0, cycles=0)
QUICK = Effort(rounds=1, turn_actions=4, turn_s=3.0, start_rounds={}, crowd_s=0.0, cycles=0)
STEP_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Times:
    what: str
    times_ms: list[float]

    def row(self) -> dict[str, object]:
        tail = quantiles(self.times_ms, n=20, method="inclusive")[-1]
        return {
            "action": self.what,
            "n": len(self.times_ms),
            "mean_ms": round(fmean(self.times_ms), 3),
            "p50_ms": round(median(self.times_ms), 3),
            "p95_ms": round(tail, 3),
        }


async def measure(effort: Effort, *, with_gateway: bool) -> dict[str, Times]:
    """`with_gateway`: IPython, and Jupyter's gateway for comparison, too."""
    async with AsyncExitStack() as stack:
        provider = await stack.enter_async_context(BubblewrapProvider())
        sandbox = await stack.enter_async_context(_sandbox(provider))
        actions: dict[str, Action] = {BASH: partial(rungs.tool(sandbox, "bash", "command"), "true")}
        other = await stack.enter_async_context(_sandbox(provider))
        run = await stack.enter_async_context(_polled(other))
        actions[TMUX] = partial(run, "true")
        if with_gateway:
            actions[IPYTHON] = partial(rungs.tool(sandbox, "ipython", "code"), "1+1")
            kernel = kernels.gateway(acknowledge_at_once=False)
            actions[GATEWAY] = partial(await stack.enter_async_context(kernel), "1+1")
        for action in actions.values():
            await finished(action())
        times = await take_turns(actions, effort)
    return {what: Times(what, own) for what, own in times.items()}


async def measure_sockets(effort: Effort) -> list[dict[str, object]]:
    return [
        {"action": f"ping, {row['who']}", "n": row["n"], "p50_ms": row["p50_ms"]}
        for row in await sockets.measure(effort)
        if row["who"] in (sockets.UDS, sockets.TCP) and row["what"] == "ping"
    ]


def _sandbox(provider: BubblewrapProvider) -> AbstractAsyncContextManager[Sandbox]:
    return rungs.running(rungs.Rung("bubblewrap", provider))


@asynccontextmanager
async def _polled(sandbox: Sandbox) -> AsyncIterator[Callable[[str], object]]:
    """Runs `tmux.polled`, which blocks, in a thread; each of its calls of tmux is one in the
    sandbox."""
    loop = asyncio.get_running_loop()
    bash = rungs.tool(sandbox, "bash", "command")

    async def called(command: str) -> str:
        return await bash(command)

    def in_sandbox(*arguments: str) -> str:
        command = f"LC_ALL=C.UTF-8 {shlex.join(['tmux', '-f', '/dev/null', *arguments])}"
        return asyncio.run_coroutine_threadsafe(called(command), loop).result(STEP_TIMEOUT_S)

    with ThreadPoolExecutor(1) as thread:
        shell = tmux.polled(in_sandbox)
        run = await loop.run_in_executor(thread, shell.__enter__)
        try:
            yield lambda command: loop.run_in_executor(thread, run, command)
        finally:
            await loop.run_in_executor(thread, shell.__exit__, None, None, None)
