"""Duration of an IPython cell, in our sandbox and by Jupyter's own client without one."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from jupyter_client.manager import start_new_async_kernel

from bench.frame import Found
from bench.tools import rungs
from bench.tools.timing import Action, compared, p50
from tests.sandbox.sandboxes import running

JUPYTER = "jupyter_client"
CODES = {
    "1+1": "1+1",
    "print loop": "for number in range(1000): print(number)",
    "1 MB": "print('\\n'.join(['7' * 99] * 10_000))",
}
EXPECTED = {
    "1+1": "2",
    "print loop": "\n".join(map(str, range(1000))),
    "1 MB": "\n".join(["7" * 99] * 10_000),
}
ANSWER_TIMEOUT_S = 30.0


async def measure(quick: bool) -> Found:
    async with AsyncExitStack() as stack:
        sandbox = await stack.enter_async_context(running("apptainer", rungs.LIMITS))
        runs = {
            JUPYTER: await stack.enter_async_context(_kernel()),
            rungs.SIF: rungs.tool(sandbox, "ipython", "code"),
        }
        actions: dict[tuple[str, str], Action] = {}
        for who, run in runs.items():
            for what, code in CODES.items():
                output = await asyncio.wait_for(run(code), ANSWER_TIMEOUT_S)
                assert output.strip() == EXPECTED[what], (who, what, output[:200])
                actions[who, what] = partial(run, code)
        rows = await compared(actions, quick)
    return Found(rows, {"ipython_p50_ms": p50(rows, rungs.SIF, "1+1")})


@asynccontextmanager
async def _kernel() -> AsyncIterator[Callable[[str], Awaitable[str]]]:
    """Jupyter's client over ZeroMQ, without any server."""
    manager, client = await start_new_async_kernel(kernel_name="python3")

    async def run(code: str) -> str:
        request, texts = client.execute(code, store_history=False, allow_stdin=False), list[str]()
        while await _next(client.get_shell_msg, request) is None:
            pass  # an earlier answer
        is_idle = False
        while not is_idle:
            match await _next(client.get_iopub_msg, request):
                case {"text": text} | {"data": {"text/plain": text}}:
                    texts.append(text)
                case {"execution_state": "idle"}:
                    is_idle = True
        return "".join(texts)

    try:
        yield run
    finally:
        client.stop_channels()
        await manager.shutdown_kernel(now=True)


async def _next(message: Callable[[], Awaitable[dict[str, Any]]], request: str) -> Any:
    """Returns the next message's content; None if it does not answer the request."""
    found = await message()
    return found["content"] if found["parent_header"].get("msg_id") == request else None
