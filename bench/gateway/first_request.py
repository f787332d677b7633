"""Time of the largest first request, 80 kB of Qwen Code, and how long it holds the event loop.

`render_ms` is the time to render and tokenise it alone, in the same run: the floor.
"""

import asyncio
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from prorl_service.gateway.dialects import chat as dialect
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.tokens.chat import ChatFormat
from tests.gateway.rollouts import rollout
from tests.gateway.traces import exchanges, play_back

NAME = "qwen_code-work"
CONTEXT = 1 << 20
ROUNDS = 15
TICK_S = 0.001


def measure() -> list[dict[str, object]]:
    with TemporaryDirectory() as directory:
        build_tiny_model(Path(directory))
        chat = ChatFormat.load(directory)
        asyncio.run(_once(chat))  # the template is compiled, its form learnt
        found = [asyncio.run(_once(chat)) for _ in range(ROUNDS)]
    return [
        {
            "request": NAME,
            "first_ms": median(took for took, _ in found),
            "longest_hold_ms": median(held for _, held in found),
            "render_ms": median(_render_ms(chat) for _ in range(ROUNDS)),
        }
    ]


def _render_ms(chat: ChatFormat) -> float:
    _, [first, *_] = exchanges(NAME)
    request = dialect.request(first.body)
    messages = [said.message for said in request.conversation]
    began = time.perf_counter()
    chat.prompt_ids(messages, tools=request.tools)
    return (time.perf_counter() - began) * 1000


async def _once(chat: ChatFormat) -> tuple[float, float]:
    """Returns milliseconds of the first request, and the longest that other tasks waited."""
    _, [first, *_] = exchanges(NAME)
    async with rollout(chat, [first.reply], max_model_len=CONTEXT) as played:
        longest = 0.0

        async def watch() -> None:
            nonlocal longest
            while True:
                began = time.perf_counter()
                await asyncio.sleep(TICK_S)
                longest = max(longest, time.perf_counter() - began - TICK_S)

        watching = asyncio.create_task(watch())
        await asyncio.sleep(0.02)
        began = time.perf_counter()
        await play_back(played.context, [first])
        took = time.perf_counter() - began
        watching.cancel()
    return took * 1000, longest * 1000
