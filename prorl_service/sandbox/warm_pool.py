"""Sandboxes started ahead of their rollouts, of the kind that the provider below makes.

Spares match what the queue will need next and, if that is less, what was used last. They start in
the background, a few at a time, so that they do not slow down starts that rollouts wait for; spares
that are no longer expected to be used are stopped. A spare is handed out once, after it answered a
ping, and never comes back: a used sandbox cannot be trusted, and a fresh one is a fork away.
Without a live spare, the sandbox is started on demand.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prorl_service.errors import SandboxError
from prorl_service.sandbox.base import Sandbox, SandboxLimits, SandboxProvider
from prorl_service.sandbox.images.image_config import ImageConfig
from prorl_service.utils.tasks import TaskOwner

log = logging.getLogger(__name__)

PARALLEL_STARTS = 2
PING_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class PoolKey:
    image: str | None
    limits: SandboxLimits
    user: str | None = None


@dataclass(slots=True, eq=False)
class Spare:
    key: PoolKey
    sandbox: Sandbox
    starting: asyncio.Task[None] | None = None
    """Task that starts it; None once it is ready."""


class WarmPool(SandboxProvider):
    """A pool for one event loop. Owns the provider below, and closes it."""

    def __init__(self, provider: SandboxProvider, *, spares: int) -> None:
        """Keeps at most `spares` sandboxes ahead of requests; 0 turns that off."""
        self.kind = provider.kind
        self.running = 0
        """Sandboxes given out and not stopped."""
        self.hits = 0
        """Starts that were given a spare."""
        self.misses = 0
        self.hand_outs = 0
        """Hand-outs in flight. Each takes half a millisecond, unless sandboxes start meanwhile."""
        self._provider = provider
        self._max_spares = spares
        self._spares: list[Spare] = []
        self._expected: list[str | None] = []
        self._used: deque[PoolKey] = deque(maxlen=spares)
        self._limits: dict[bool, Counter[SandboxLimits]] = {True: Counter(), False: Counter()}
        """Requests per limits, for sandboxes without an image (True) and with one (False)."""
        self._failed: set[PoolKey] = set()
        """Keys that get no spares until a start succeeds or they are no longer wanted."""
        self._short_of_room = 0
        """Images that wait for another's last sandbox to end; until then no spares start."""
        self._background = TaskOwner()
        self._closed = False

    def counts(self) -> dict[str, int]:
        """Returns counts for people: see the attributes. `warm` counts the ready spares."""
        warm = len(self._spares) - self._starting()
        return {
            "running": self.running,
            "warm": warm,
            "hits": self.hits,
            "misses": self.misses,
        }

    def create(
        self, *, image: str | None, limits: SandboxLimits, user: str | None = None
    ) -> "WarmSandbox":
        self.check(image)
        return WarmSandbox(self, PoolKey(image, limits, user))

    def check(self, image: str | None) -> None:
        self._provider.check(image)

    async def image_config(self, image: str) -> ImageConfig:
        return await self._provider.image_config(image)

    def prewarm(self, images: Sequence[str | None]) -> None:
        """Plans spares of these images, with the limits that were requested most often so far."""
        self._provider.prewarm(images)
        self._expected = list(images)
        self.refill()

    async def evict_image(self, wait_s: float) -> bool:
        """Ends what is idle below; if nothing is, stops all spares and waits."""
        if await self._provider.evict_image(0):
            return True
        self._failed.update(spare.key for spare in self._spares)
        for spare in list(self._spares):
            self._drop(spare)
        self._short_of_room += 1
        try:
            return await self._provider.evict_image(wait_s)
        finally:
            self._short_of_room -= 1
            self.refill()

    async def close(self) -> None:
        self._closed = True
        for spare in list(self._spares):
            self._drop(spare)
        await self._background.drain()
        await self._provider.close()

    # --- for the sandboxes given out ------------------------------------------------------------

    def asked(self, key: PoolKey) -> None:
        """Counts a request. Call it once for each start, before anything else."""
        self._limits[key.image is None][key.limits] += 1
        if key.image in self._expected:
            self._expected.remove(key.image)

    def take(self, key: PoolKey) -> Sandbox | None:
        """Returns a ready spare, which may have died since it was started, or None."""
        for spare in self._spares:
            if spare.key == key and spare.starting is None:
                self._spares.remove(spare)
                return spare.sandbox
        return None

    def new(self, key: PoolKey) -> Sandbox:
        return self._provider.create(image=key.image, limits=key.limits, user=key.user)

    def started(self, key: PoolKey, *, was_warm: bool) -> None:
        self.running += 1
        self.hits += was_warm
        self.misses += not was_warm
        self._failed.discard(key)
        self._used.append(key)

    def discard(self, sandbox: Sandbox) -> None:
        self._background.run_once(sandbox.stop(), name="stop a spare sandbox")

    # --- keeping spares -------------------------------------------------------------------------

    def _wanted(self) -> list[PoolKey]:
        """Returns the keys of all wanted spares, most urgent first."""
        expected = self._expected[: self._max_spares]
        keys = [PoolKey(image, self._usual_limits(image)) for image in expected]
        return [*keys, *reversed(self._used)][: self._max_spares]

    def _usual_limits(self, image: str | None) -> SandboxLimits:
        usual = self._limits[image is None].most_common(1)
        return usual[0][0] if usual else SandboxLimits()

    def refill(self) -> None:
        """Drops surplus spares and starts missing ones. Call it after every change of either."""
        if self._closed or self.hand_outs or self._short_of_room:
            return
        wanted = self._wanted()
        self._failed.intersection_update(wanted)
        missing = Counter(wanted)
        for spare in list(self._spares):
            missing[spare.key] -= 1
            if missing[spare.key] < 0:
                self._drop(spare)
        for key in wanted:
            if self._starting() == PARALLEL_STARTS:
                break
            if missing[key] > 0 and key not in self._failed:
                missing[key] -= 1
                self._add(key)

    def _starting(self) -> int:
        return sum(spare.starting is not None for spare in self._spares)

    def _add(self, key: PoolKey) -> None:
        spare = Spare(key, self.new(key))
        spare.starting = self._background.run_once(
            self._start(spare), name=f"start a spare sandbox of {key.image}"
        )
        self._spares.append(spare)

    async def _start(self, spare: Spare) -> None:
        try:
            await spare.sandbox.start()
        except Exception as error:  # the boundary: a start on demand reports its own error
            if spare in self._spares:
                log.warning("spare sandbox of image %s did not start: %s", spare.key.image, error)
                self._spares.remove(spare)
                self._failed.add(spare.key)
        spare.starting = None
        self.refill()

    def _drop(self, spare: Spare) -> None:
        self._spares.remove(spare)
        if spare.starting is not None:
            spare.starting.cancel()
        else:
            self.discard(spare.sandbox)


class WarmSandbox:
    """A sandbox that `start` takes from the spares or starts on demand."""

    def __init__(self, pool: WarmPool, key: PoolKey) -> None:
        self._pool = pool
        self._key = key
        self._sandbox: Sandbox | None = None
        self._may_start = True
        self._stopped = False
        self._counted = False

    async def start(self) -> None:
        if not self._may_start:
            raise SandboxError("a sandbox can be started only once", retryable=False)
        self._may_start = False
        self._pool.asked(self._key)
        try:
            was_warm = await self._take_spare()
            if not was_warm:
                self._sandbox = self._pool.new(self._key)
                await self._sandbox.start()
            if not self._stopped:
                self._counted = True
                self._pool.started(self._key, was_warm=was_warm)
        finally:
            self._pool.refill()

    async def _take_spare(self) -> bool:
        while (spare := self._pool.take(self._key)) is not None:
            self._sandbox = spare
            self._pool.hand_outs += 1
            try:
                await spare.ping(timeout_s=PING_TIMEOUT_S)
            except SandboxError:
                self._pool.discard(spare)
                if self._stopped:
                    raise
            except BaseException:
                await spare.stop()
                raise
            else:
                return True
            finally:
                self._pool.hand_outs -= 1
        return False

    async def stop(self) -> None:
        self._may_start, self._stopped = False, True
        if self._counted:
            self._counted = False
            self._pool.running -= 1
        if self._sandbox is not None:
            await self._sandbox.stop()

    def __getattr__(self, name: str) -> Any:
        """Returns the verbs of the sandbox itself."""
        if self._sandbox is None:
            raise SandboxError("the sandbox was not started", retryable=False)
        return getattr(self._sandbox, name)
