"""Times of a bash call, directly and through tmux, one at a time in a bubblewrap sandbox.

tmux runs in such a sandbox, too, and is polled as OpenHands does (`bench.tools.tmux`).
"""

import asyncio
import shlex
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from statistics import median, quantiles

from bench.frame import Row
from bench.tools import rungs, tmux
from bench.tools.timing import Action, Effort, finished, take_turns
from prorl_service.sandbox.base import Sandbox
from tests.sandbox.sandboxes import running

BASH, TMUX = "bash", "bash, tmux as OpenHands"
FULL = Effort(rounds=5, turn_actions=20, turn_s=4.0)
QUICK = Effort(rounds=1, turn_actions=4, turn_s=3.0)
STEP_TIMEOUT_S = 60.0


async def measure(effort: Effort) -> dict[str, list[float]]:
    """Returns the milliseconds of each way."""
    async with AsyncExitStack() as stack:
        sandbox, other = [
            await stack.enter_async_context(running("bubblewrap", rungs.LIMITS)) for _ in range(2)
        ]
        run = await stack.enter_async_context(_polled(other))
        actions: dict[str, Action] = {
            BASH: partial(rungs.tool(sandbox, "bash", "command"), "true"),
            TMUX: partial(run, "true"),
        }
        for action in actions.values():
            await finished(action())
        return await take_turns(actions, effort)


def row(what: str, times_ms: list[float]) -> Row:
    tail = quantiles(times_ms, n=20, method="inclusive")[-1]
    return {
        "action": what,
        "p50_ms": round(median(times_ms), 3),
        "p95_ms": round(tail, 3),
    }


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
