"""The trainer's sampling client as an engine: a call ends with the weights that it began with.

Samples between `open` and `close` only, while the trainer does not train: SkyRL's JAX back end
keeps one copy of an adapter, and would answer a client of older weights with newer ones, or put the
older ones in their place. The SDK waits for a server without end; `watch` notices that it is gone.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

import tinker
from tinker import types

from prorl_service.client.background_loop import in_thread
from prorl_service.client.engine_gateway import AskedSampling, Completion
from prorl_service.errors import BackendLent, BackendRejected, BackendUnavailable, ProRLError

logger = logging.getLogger(__name__)

T = TypeVar("T")

PROBE_S = 5.0
"""Seconds between questions to the server, and for its answer."""
SILENT_S = 30.0
"""Silence after which the server counts as out of reach, and calls in flight are given up."""
LOST_HINT = "start the Tinker server again, and continue from a checkpoint of your training client"
FULL_HINT = "end other clients, wait for their sessions to time out, or start it with more slots"


class TinkerServerLost(ProRLError):
    """The Tinker server has not answered for as long as the training waits for anything."""


class NoTrainingClient(ProRLError):
    """The Tinker server gives no training client."""


def lora_training_client(service: tinker.ServiceClient, **options: Any) -> tinker.TrainingClient:
    """Does what `create_lora_training_client` does. Raises `NoTrainingClient`."""
    try:
        return service.create_lora_training_client(**options)
    except (ValueError, tinker.TinkerError) as error:
        hint = FULL_HINT if "LoRA adapters" in str(error) else ""
        raise NoTrainingClient(f"the Tinker server gives no client: {error}", hint=hint) from None


class SamplingEngine:
    """Engine of one training client; belongs to the gateway's event loop."""

    def __init__(self, training_client: tinker.TrainingClient, *, deadline_s: float) -> None:
        """`deadline_s`: silence of the server after which it is lost."""
        self.problem = ""
        self.version = -1
        self.has_news = asyncio.Event()
        """Event that is set when `problem` or `is_lent` have changed."""
        self._training_client, self._deadline_s = training_client, deadline_s
        self._sampler: tinker.SamplingClient | None = None
        self._is_open = False
        self._calls: set[asyncio.Task[Any]] = set()
        self._answered_at = time.monotonic()
        self._is_lost = asyncio.Event()

    @property
    def is_lent(self) -> bool:
        return not self._is_open

    async def open(self) -> None:
        """Takes the training client's present weights, and samples with them. Raises
        `TinkerServerLost`, and what the SDK raises."""
        await self.close()
        # The SDK's own coroutine blocks its caller.
        take = self._training_client.save_weights_and_get_sampling_client
        self._sampler = await self.until(in_thread(take))
        self.version += 1
        self._is_open = True
        self.has_news.set()

    async def close(self) -> None:
        """Returns when nothing is sampled. Calls in flight are given back: the service repeats them
        after `open`."""
        self._is_open = False
        self.has_news.set()
        self._cancel_calls()
        await asyncio.gather(*self._calls, return_exceptions=True)

    def _cancel_calls(self) -> None:
        for call in self._calls:
            call.cancel()

    def expanded(self, prompt: list[int], pictures: Sequence[bytes]) -> list[int]:
        raise BackendRejected("this trainer shows its model no pictures")

    async def sample(
        self,
        session_id: str,
        prompt: list[int],
        asked: AskedSampling,
        pictures: Sequence[bytes] = (),
    ) -> Completion:
        """Samples with one version of the weights. Raises `BackendError`."""
        if self._sampler is None or not self._is_open:
            raise BackendLent("the trainer trains")
        version, given = self.version, types.ModelInput.from_ints(prompt)
        call = asyncio.ensure_future(self._sampler.sample_async(given, 1, _params(asked)))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        try:
            await asyncio.wait([call])
        finally:
            call.cancel()
        if call.cancelled():
            raise BackendUnavailable(self.problem) if self.problem else BackendLent("it trains")
        if (error := call.exception()) is not None:
            raise _blamed(error) from error
        (sequence,) = call.result().sequences
        ids, logprobs = list(sequence.tokens), list(sequence.logprobs or [])
        return Completion(ids, logprobs, [version] * len(ids), finish_reason=sequence.stop_reason)

    async def watch(self) -> None:
        """Asks the server without end whether it is there."""
        while True:
            await asyncio.sleep(PROBE_S)
            try:
                async with asyncio.timeout(PROBE_S):
                    await self._training_client.get_info_async()
                self._answered_at, failure = time.monotonic(), ""
            except Exception as error:  # whatever the SDK raises
                failure = f"{type(error).__name__} {error}".strip()
            silent_s = time.monotonic() - self._answered_at
            if silent_s >= min(SILENT_S, self._deadline_s):
                self._note(f"the Tinker server has not answered for {silent_s:.0f} s: {failure}")
                self._cancel_calls()
            elif not failure:
                self._note("")
            if silent_s >= self._deadline_s:
                self._is_lost.set()

    def _note(self, problem: str) -> None:
        is_news, self.problem = bool(problem) != bool(self.problem), problem
        if is_news:
            logger.warning("%s", problem or "the Tinker server answers again")
            self.has_news.set()

    async def until(self, work: Awaitable[T]) -> T:
        """Returns what `work` returns. Raises `TinkerServerLost`."""
        task, lost = asyncio.ensure_future(work), asyncio.ensure_future(self._is_lost.wait())
        try:
            await asyncio.wait([task, lost], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise TinkerServerLost(self.problem, hint=LOST_HINT)
            return task.result()
        finally:
            task.cancel()
            lost.cancel()


def _params(asked: AskedSampling) -> types.SamplingParams:
    names = {"max_tokens", "seed", "temperature", "top_p"}
    top_k, stop = asked.top_k or -1, asked.stop_token_ids or None
    return types.SamplingParams(top_k=top_k, stop=stop, **asked.model_dump(include=names))


def _blamed(error: BaseException) -> BackendUnavailable | BackendRejected:
    """Returns the service's error: one that a retry may help, unless it is the request's fault."""
    is_user = isinstance(error, tinker.APIStatusError) and 400 <= error.status_code < 500
    if isinstance(error, tinker.RequestFailedError):
        is_user = error.category == tinker.RequestErrorCategory.User
    kind = BackendRejected if is_user else BackendUnavailable
    return kind(f"the Tinker server did not sample: {type(error).__name__} {error}")
