"""Versions of tokens from an engine that does not report them: vLLM before 0.32.

No call is in flight there while weights change: an update aborts running calls and, afterwards, the
rest of each is sampled by a call whose prompt ends with the ids so far. Each answer thus has one
label, that of the weights when it was requested. `VllmEngine` makes the calls.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from hashlib import blake2b

from prorl_service.errors import BackendRejected, BackendUnavailable
from prorl_service.inference.engines.base import EngineCall, Generation
from prorl_service.inference.engines.versions import NEVER_UPDATED

ABORT_AGAIN_S = 0.2
"""Seconds before calls are aborted again: some reach the engine's scheduler late."""
SEED_BYTES = 6
"""Length in bytes of a seed that every JSON reader keeps exact."""


Sample = Callable[[EngineCall, str], Awaitable[Generation]]
"""Makes one call to the engine, which samples with the weights of that label."""


class Bracket:
    """The calls and updates of one engine, kept apart."""

    def __init__(
        self, ask_label: Callable[[], Awaitable[str]], process: Callable[[], Awaitable[str]]
    ) -> None:
        """`ask_label` asks the engine for the label of its weights, `process` for an identifier of
        its current start. Both raise `BackendRejected` if the engine does not report it."""
        self.label = NEVER_UPDATED
        """Label of the weights when it was last asked for, or when weights were last given."""
        self._ask_label = ask_label
        self._process = process
        self._given: tuple[str, str] | None = None
        """Process that was given weights but keeps no label, and their label."""
        self._noted: str | None = None
        """Process that will be given weights; None if it keeps a label."""
        self._calls = 0
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()

    async def generate(self, sample: Sample, call: EngineCall) -> Generation:
        """Samples the whole answer; if an update cuts a call short, another one continues it."""
        parts: list[Generation] = []
        while True:
            async with self._call():
                part = await self._sample_one(sample, call)
                is_cut = part.finish_reason == "abort" and not self._open.is_set()
            parts.append(part)
            left = call.max_tokens - len(part.token_ids)
            if not is_cut or not left:
                return joined(parts)
            if part.token_ids:
                call = replace(
                    call,
                    prompt=call.prompt.extended(part.token_ids),
                    max_tokens=left,
                    seed=derived_seed(call.seed, left),
                )

    async def _sample_one(self, sample: Sample, call: EngineCall) -> Generation:
        label = self.label
        part = await sample(call, label)
        # An engine may be restarted, or be updated by others, without a call failing.
        if (now := await self.label_now()) != label:
            raise BackendUnavailable(f"{part.backend} has the weights {now}, not {label}")
        return part

    async def label_now(self) -> str:
        """Returns the engine's label or, if it keeps none, the one given since its start."""
        try:
            return await self._ask_label()
        except BackendRejected:
            if self._given is None:
                return NEVER_UPDATED
        process, label = self._given
        with suppress(BackendRejected):
            return label if await self._process() == process else NEVER_UPDATED
        return NEVER_UPDATED

    async def close(self, abort: Callable[[], Awaitable[None]]) -> None:
        """Holds new calls back, and returns when none is in flight. `abort` ends calls that have
        reached the engine."""
        try:
            await self._ask_label()
            self._noted = None
        except BackendRejected:
            self._noted = await self._process()
        self._open.clear()
        await abort()
        while self._calls:
            try:
                async with asyncio.timeout(ABORT_AGAIN_S):
                    await self._idle.wait()
            except TimeoutError:
                await abort()

    def open(self) -> None:
        self._open.set()

    def took(self, label: str) -> None:
        """Notes that the engine now has weights with that label."""
        self.label = label
        self._given = None if self._noted is None else (self._noted, label)

    @asynccontextmanager
    async def _call(self) -> AsyncIterator[None]:
        while not self._open.is_set():
            await self._open.wait()
        self._calls += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()


def joined(parts: Sequence[Generation]) -> Generation:
    """Joins the parts of a call into one answer. `cached_tokens` is the first part's."""
    if len(parts) == 1:
        return parts[0]
    return replace(
        parts[-1],
        token_ids=[token for part in parts for token in part.token_ids],
        logprobs=[logprob for part in parts for logprob in part.logprobs],
        policy_versions=[version for part in parts for version in part.policy_versions],
        labels=frozenset[str]().union(*(part.labels for part in parts)),
        cached_tokens=parts[0].cached_tokens,
    )


def derived_seed(seed: int | None, left: int) -> int | None:
    """Returns a seed for the last `left` tokens of a call: the old seed would draw them with the
    random numbers of its first tokens."""
    if seed is None:
        return None
    return int.from_bytes(blake2b(f"{seed} {left}".encode(), digest_size=SEED_BYTES).digest())
