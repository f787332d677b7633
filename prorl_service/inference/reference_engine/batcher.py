"""Continuous batching: which sequences share the next forward pass, and where its tokens go.

A sequence is a list of token ids, and a cache that covers the first of them. Every step feeds the
tokens that the cache lacks: the whole prompt at first, one token afterwards, everything again after
a change of weights. So prefill, decoding and recomputation are one case, and no token is ever
computed from the keys of older weights.

All state lives in the event loop; only arithmetic runs in a thread, one piece at a time. The server
owns `run` and notices when it ends.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Literal, TypeVar

from prorl_service.inference.engines.versions import NEVER_UPDATED
from prorl_service.inference.reference_engine.kv import KVCache, KVPool, common_prefix
from prorl_service.inference.reference_engine.model import Chunk, PackedModel
from prorl_service.inference.reference_engine.sampling import DrawParams, sample
from prorl_service.inference.reference_engine.vision import Sight
from prorl_service.schemas import EngineTimes, StopReason

MAX_SEQUENCES = 256
MAX_STEP_TOKENS = 2048
"""Most tokens of a step: bounds how long running sequences wait for the prompt of a new one."""
MIN_SHARED = 16
"""Fewest tokens that are worth waiting a step for, and copying."""

T = TypeVar("T")
PauseMode = Literal["abort", "wait", "keep"]


class EngineDead(Exception):
    """A computation failed half-way, so nothing that this process computes can be trusted."""


@dataclass(eq=False, slots=True)
class Sequence:
    prompt_ids: list[int]
    max_tokens: int
    params: DrawParams
    rng: Random
    stop_token_ids: frozenset[int]
    session_id: str | None
    sight: Sight | None = None
    """The pictures of the prompt, if it has any."""
    token_ids: list[int] = field(init=False)
    logprobs: list[float] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    cached_tokens: int = 0
    finish_reason: StopReason | None = None
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    queued_at: float = field(default_factory=time.monotonic)
    begun_at: float | None = None
    first_token_at: float | None = None

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_ids)

    @property
    def output_ids(self) -> list[int]:
        return self.token_ids[len(self.prompt_ids) :]

    @property
    def max_length(self) -> int:
        return len(self.prompt_ids) + self.max_tokens

    @property
    def times(self) -> EngineTimes:
        """Times until now; phases that were not reached are 0."""
        now = time.monotonic()
        begun_at = self.begun_at or now
        first_token_at = self.first_token_at or now
        return EngineTimes(
            queue_s=begun_at - self.queued_at,
            prefill_s=first_token_at - begun_at,
            decode_s=now - first_token_at,
        )

    def append(self, token_id: int, logprob: float, version: str) -> None:
        self.first_token_at = self.first_token_at or time.monotonic()
        self.token_ids.append(token_id)
        self.logprobs.append(logprob)
        self.versions.append(version)
        if token_id in self.stop_token_ids:
            self.finish_reason = "stop"
        elif len(self.token_ids) == self.max_length:
            self.finish_reason = "length"


Plan = list[tuple[Sequence, KVCache, list[int]]]


class _BatcherState(StrEnum):
    RUNNING = "running"
    DRAINING = "draining"
    PAUSED = "paused"


@dataclass(slots=True)
class Counters:
    """Sums over calls; the times are those of calls that have finished."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    finished: int = 0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0

    def add(self, times: EngineTimes) -> None:
        self.finished += 1
        self.queue_s += times.queue_s
        self.prefill_s += times.prefill_s
        self.decode_s += times.decode_s


class Batcher:
    """`kv_tokens`: what the caches may hold together; a single sequence must not need more."""

    def __init__(self, model: PackedModel, kv_tokens: int) -> None:
        self.model = model
        self.version = NEVER_UPDATED
        self.counters = Counters()
        self.waiting: deque[Sequence] = deque()
        self.running: dict[Sequence, KVCache] = {}
        self.failure: Exception | None = None
        self._state = _BatcherState.RUNNING
        self.kv = KVPool(model.kv_layout, kv_tokens)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="torch")
        self._device = asyncio.Lock()
        self._changed = asyncio.Event()

    @property
    def is_paused(self) -> bool:
        return self._state is not _BatcherState.RUNNING

    # --- for requests ---------------------------------------------------------------------------

    async def generate(self, sequence: Sequence) -> None:
        """Returns once the sequence has a finish reason; a cancelled caller aborts it."""
        if not self.failure:
            self.waiting.append(sequence)
            self._changed.set()
            try:
                await sequence.finished.wait()
            finally:
                self.abort(sequence)
        if self.failure:
            raise EngineDead(str(self.failure)) from self.failure

    def abort(self, sequence: Sequence) -> None:
        if sequence.finish_reason:
            return
        sequence.finish_reason = "abort"
        if sequence in self.running:
            self._retire(sequence)
        else:
            self.waiting.remove(sequence)
            sequence.finished.set()

    async def pause(self, mode: PauseMode) -> None:
        """Returns once sampling has stopped. New requests queue in every mode."""
        if mode == "wait":
            self._state = _BatcherState.DRAINING
            for sequence in list(self.running):
                await sequence.finished.wait()
        self._state = _BatcherState.PAUSED
        if mode == "abort":
            self._abort_all()
        async with self._device:
            pass

    def resume(self) -> None:
        self._state = _BatcherState.RUNNING
        self._changed.set()

    async def change_weights(self, change: Callable[[], None]) -> None:
        """Runs `change` between two steps; forgets what was computed with the old weights."""
        async with self._device:
            try:
                await self._compute(change)
            except Exception as error:  # the weights may be half old, half new
                self._die(error)
                raise
            self.kv.clear()
            self.model.forget_features()
            for cache in self.running.values():
                cache.length = 0

    # --- the loop -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Steps until cancelled or failed, and then ends every request."""
        try:
            while not self.failure:
                self._changed.clear()
                if not await self._step():
                    await self._changed.wait()
        except Exception as error:  # requests that wait for tokens must end
            self._die(error)
            raise
        finally:
            self._abort_all()
            self._thread.shutdown(wait=False)

    def _die(self, error: Exception) -> None:
        self.failure = error
        self._abort_all()
        self._changed.set()

    def _abort_all(self) -> None:
        for sequence in [*self.running, *self.waiting]:
            self.abort(sequence)

    async def _step(self) -> bool:
        """Runs one forward pass; returns False if there is nothing to do until a change."""
        async with self._device:
            plan = self._plan()
            if not plan:
                return False
            for sequence, token_id, logprob in await self._compute(lambda: self._forward(plan)):
                if not sequence.finish_reason:
                    sequence.append(token_id, logprob, self.version)
                    self.counters.generation_tokens += 1
                    if sequence.finish_reason:
                        self._retire(sequence)
        return True

    def _plan(self) -> Plan:
        if self._state is _BatcherState.PAUSED:
            return []
        if self._state is _BatcherState.RUNNING:
            self._admit()
        plan: Plan = []
        room = MAX_STEP_TOKENS
        begun: list[list[int]] = []
        for sequence, cache in self.running.items():
            if len(sequence.token_ids) - cache.length > MIN_SHARED:
                self._share(sequence, cache)
                useful = cache.length + MIN_SHARED
                if any(common_prefix(sequence.token_ids, one) >= useful for one in begun):
                    continue  # what this step computes for another one is copied in the next
                begun.append(sequence.token_ids)
            if chunk := sequence.token_ids[cache.length : cache.length + room]:
                plan.append((sequence, cache, chunk))
                room -= len(chunk)
        return plan

    def _share(self, sequence: Sequence, cache: KVCache) -> None:
        """Copies what running sequences have computed of a sequence's first tokens."""
        wanted = sequence.token_ids[:-1]
        for other, known in self.running.items():
            shared = min(known.length, common_prefix(wanted, other.token_ids))
            if shared >= cache.length + MIN_SHARED:
                sequence.cached_tokens += shared - cache.length
                self.counters.cached_tokens += shared - cache.length
                cache.copy_from(known, shared)

    def _admit(self) -> None:
        while self.waiting and len(self.running) < MAX_SEQUENCES:
            sequence = self.waiting[0]
            cache = self.kv.take(sequence.max_length, sequence.prompt_ids)
            if not cache:
                return
            self.running[self.waiting.popleft()] = cache
            sequence.cached_tokens, sequence.begun_at = cache.length, time.monotonic()
            self.counters.prompt_tokens += len(sequence.prompt_ids)
            self.counters.cached_tokens += cache.length

    def _forward(self, plan: Plan) -> list[tuple[Sequence, int, float]]:
        logits = self.model.forward([Chunk(cache, ids, one.sight) for one, cache, ids in plan])
        complete = [
            row
            for row, (sequence, cache, _) in enumerate(plan)
            if cache.length == len(sequence.token_ids)
        ]
        sequences = [plan[row][0] for row in complete]
        token_ids, logprobs = sample(
            logits[complete],
            [sequence.params for sequence in sequences],
            [sequence.rng.random() for sequence in sequences],
        )
        return list(zip(sequences, token_ids, logprobs, strict=True))

    async def _compute(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _retire(self, sequence: Sequence) -> None:
        cache = self.running.pop(sequence)
        self.counters.add(sequence.times)
        if sequence.session_id and sequence.finish_reason != "abort":
            self.kv.keep(cache, sequence.token_ids, sequence.session_id)
        else:
            self.kv.release(cache)
        sequence.finished.set()
        self._changed.set()
