"""The time that a model on a GPU would take: decoding in a batch, prefill, a prefix cache.

About an 8B model on one large GPU: a decoding step takes 8 ms and 0.1 ms for each sequence in the
batch; prompts are computed first come first served, 20,000 tokens a second, next to decoding; the
cache holds 400,000 tokens: contexts of calls in flight cannot be evicted, those of waiting sessions
are, least recently used first; a call that finds no room queues. Time passes in steps of 20 ms.
"""

import asyncio
import time
from collections import OrderedDict, deque
from dataclasses import dataclass

TICK_S = 0.02
DECODE_S, DECODE_S_PER_SEQUENCE = 0.008, 0.0001
PREFILL_TOKENS_PER_S = 20_000
CACHE_TOKENS = 400_000
MAX_TOKENS = 1024


@dataclass(slots=True, eq=False)
class Call:
    session: str
    tokens: int
    context: int
    uncached: int
    ended: asyncio.Future[None]
    to_prefill: float
    to_decode: float


class Model:
    def __init__(self, slowness: float) -> None:
        self.calls: list[Call] = []
        self.queue: deque[Call] = deque()
        self._slowness = slowness
        self._cached: OrderedDict[str, int] = OrderedDict()
        """Contexts of waiting sessions, the least recently used first."""
        self._work = asyncio.Event()

    async def sample(self, session: str, context: int, tokens: int) -> int:
        """Waits while it samples `tokens`; returns how many of the `context` were cached."""
        uncached = max(0, context - self._cached.pop(session, 0))
        ended = asyncio.get_running_loop().create_future()
        call = Call(session, tokens, context, uncached, ended, uncached, tokens)
        self.queue.append(call)
        self._work.set()
        try:
            await ended
        except asyncio.CancelledError:  # its client has given it up
            for some in (self.calls, self.queue):
                if call in some:
                    some.remove(call)
            raise
        return context - uncached

    async def run(self) -> None:
        before = time.monotonic()
        while True:
            if not self.calls and not self.queue:
                self._work.clear()
                await self._work.wait()
                before = time.monotonic()
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            self._admit()
            self._step(now - before)
            before = now

    def _admit(self) -> None:
        busy = sum(call.context + MAX_TOKENS for call in self.calls)
        while self.queue and busy + self.queue[0].context + MAX_TOKENS <= CACHE_TOKENS:
            self.calls.append(self.queue.popleft())
            busy += self.calls[-1].context + MAX_TOKENS
        while self._cached and busy + sum(self._cached.values()) > CACHE_TOKENS:
            self._cached.popitem(last=False)

    def _step(self, step_s: float) -> None:
        prefill = PREFILL_TOKENS_PER_S * step_s / self._slowness
        decoding = []
        for call in self.calls:
            if call.to_prefill > 0:
                done = min(prefill, call.to_prefill)
                call.to_prefill -= done
                prefill -= done
            else:
                decoding.append(call)
        token_s = self._slowness * (DECODE_S + DECODE_S_PER_SEQUENCE * len(decoding))
        for call in decoding:
            call.to_decode -= step_s / token_s
            if call.to_decode <= 0:
                self.calls.remove(call)
                self._cached[call.session] = call.context + call.tokens
                if not call.ended.done():
                    call.ended.set_result(None)
