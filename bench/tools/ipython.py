"""Duration of an IPython cell, by the way to the kernel; ours on each rung of isolation."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial

from bench.frame import Found
from bench.tools import kernels, rungs
from bench.tools.timing import Action, compared, p50, ratio

GATEWAY, GATEWAY_QUICK = "kernel gateway", "kernel gateway, no delayed ACK"
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


async def measure(quick: bool) -> Found:
    async with AsyncExitStack() as stack:
        runs = {
            who: await stack.enter_async_context(kernels.gateway(acknowledge_at_once=at_once))
            for who, at_once in ((GATEWAY, False), (GATEWAY_QUICK, True))
        }
        runs["jupyter_client"] = await stack.enter_async_context(kernels.direct())
        sandboxes = await rungs.enter_all(stack)
        runs |= {name: rungs.tool(one, "ipython", "code") for name, one in sandboxes.items()}
        actions: dict[tuple[str, str], Action] = {}
        for who, run in runs.items():
            for what, code in CODES.items():
                output = await asyncio.wait_for(run(code), kernels.ANSWER_TIMEOUT_S)
                assert output.strip() == EXPECTED[what], (who, what, output[:200])
                actions[who, what] = partial(run, code)
        rows = await compared(actions, quick)
    ours = p50(rows, rungs.SIF, "1+1")
    headline = {
        "ipython_p50_ms": ours,
        "ipython_vs_gateway_ratio": ratio(p50(rows, GATEWAY, "1+1"), ours),
        "ipython_vs_gateway_no_delayed_ack_ratio": ratio(p50(rows, GATEWAY_QUICK, "1+1"), ours),
    }
    return Found(rows, headline)
