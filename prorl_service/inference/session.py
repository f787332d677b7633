"""The calls of one rollout: to one backend while it serves, and to another when it fails.

A call that fails for a passing reason is retried elsewhere with exactly the same prompt ids. Tokens
of earlier turns keep their logprobs and policy versions; nothing of the failed call is kept.
"""

import asyncio
import logging
import random
from array import array
from collections.abc import Sequence

from prorl_service import metrics
from prorl_service.errors import BackendBusy, BackendError, BackendLent
from prorl_service.inference.base import Generation
from prorl_service.inference.cache_budget import CacheBudget, CachePlace
from prorl_service.inference.dispatch import Dispatch
from prorl_service.inference.engines.base import EngineCall
from prorl_service.inference.member import PoolMember
from prorl_service.inference.prompt_json import EncodedPrompt
from prorl_service.inference.routing import RouteRequest
from prorl_service.schemas import Sampling
from prorl_service.utils.budget import WorkClock

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
"""Attempts of one call. Waiting for an engine that is down or lent uses up no attempt."""

MAX_BUSY = 8
"""Refusals of one call for want of patience, which are no failed attempts."""
LONGEST_BUSY_S = 60.0
"""Longest wait in seconds after a refusal that does not say how long."""

MAX_PROMPTS = 8
"""Most prompts whose JSON is kept for the calls that continue them."""


class RolloutSession:
    """The `Generator` of one rollout."""

    def __init__(
        self,
        rollout_id: str,
        clock: WorkClock,
        dispatch: Dispatch,
        model: str,
        cache: CacheBudget,
    ) -> None:
        """`clock` stops while a call waits for an engine or its cache, or its engine samples
        nothing."""
        self._rollout_id = rollout_id
        self._clock = clock
        self._dispatch, self._model = dispatch, model
        self._cache = cache
        self._place: CachePlace | None = None
        self._member: PoolMember | None = None
        self._prompts: list[EncodedPrompt] = []
        """Prompts of the newest calls, at most one for each conversation, the newest last."""

    async def enter(self, place: CachePlace) -> None:
        """Waits in the line for the engines' cache. Without, no call waits for the cache."""
        self._place = place
        self._cache.join(place)
        await place.admitted.wait()

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        sampling: Sampling,
        max_tokens: int,
        seed: int | None,
        stop_token_ids: list[int],
        stop: Sequence[str] = (),
        pictures: Sequence[bytes] = (),
    ) -> Generation:
        """Raises the `BackendError` of the last of `MAX_ATTEMPTS`."""
        prompt = self._encoded(prompt_ids)
        call = EngineCall(
            prompt, sampling, max_tokens, seed, self._rollout_id, stop_token_ids, stop, pictures
        )
        failed: list[PoolMember] = []
        busy = 0
        while True:
            pinned = self._member.backend_id if self._member else None
            request = RouteRequest(self._rollout_id, pinned, len(prompt), max_tokens)
            self._clock.stop()
            try:
                if self._place is not None:
                    await self._place.admitted.wait()
                member = await self._dispatch.route(self._model, request, failed)
            finally:
                self._clock.start()
            self._pin(member)
            try:
                answer = await member.call(
                    member.backend.generate(call), prompt_tokens=len(prompt), clock=self._clock
                )
                if self._place is not None:
                    self._cache.grow(self._place, len(prompt) + len(answer.token_ids))
                return answer
            except BackendLent:
                continue
            except BackendBusy as error:
                busy += 1
                if busy == MAX_BUSY:
                    raise
                await self._wait(error.retry_after_s or min(2.0 ** (busy - 1), LONGEST_BUSY_S))
            except BackendError as error:
                failed.append(member)
                if not error.retryable or len(failed) == MAX_ATTEMPTS:
                    raise
                log.info("call retried elsewhere: %s", error.message)
                metrics.call_failed_over()
            finally:
                self._dispatch.end(request, member)

    async def _wait(self, seconds: float) -> None:
        """Waits somewhat longer: calls that were refused together come back one by one."""
        self._clock.stop()
        try:
            await asyncio.sleep(seconds * random.uniform(1.0, 1.25))
        finally:
            self._clock.start()

    def _encoded(self, prompt_ids: Sequence[int]) -> EncodedPrompt:
        ids = array("i", prompt_ids)
        extended = (one for one in self._prompts if one.is_prefix_of(ids))
        before = max(extended, key=len, default=None)
        if before is not None:
            self._prompts.remove(before)
        prompt = EncodedPrompt(ids, before=before)
        self._prompts = [*self._prompts[1 - MAX_PROMPTS :], prompt]
        return prompt

    def _pin(self, member: PoolMember) -> None:
        if member is not self._member:
            self.unpin()
            self._member = member
            member.load.sessions += 1

    def close(self) -> None:
        """Frees the pin, and the place in the line for the cache."""
        self.unpin()
        if self._place is not None:
            self._cache.leave(self._place)

    def unpin(self) -> None:
        if self._member is not None:
            self._member.load.sessions -= 1
            self._member = None
