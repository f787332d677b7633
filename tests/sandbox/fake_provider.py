"""A fake kind of sandbox that starts, fails and dies on demand, for tests of the warm pool."""

import asyncio
from collections.abc import Sequence
from typing import Any

from prorl_service.errors import SandboxError, TaskError
from prorl_service.sandbox.base import SandboxLimits, SandboxProvider, ToolResult
from prorl_service.sandbox.warm_pool import WarmPool, WarmSandbox
from prorl_service.testing import FakeSandbox

LIMITS = SandboxLimits()
OTHER_LIMITS = SandboxLimits(memory_mb=64)


class Sandbox(FakeSandbox):
    def __init__(self, provider: "Provider", image: str | None, limits: SandboxLimits) -> None:
        super().__init__(lambda name, arguments: ToolResult(image or ""))
        self.image = image
        self.limits = limits
        self.starts = 0
        self._provider = provider
        self.stopped = asyncio.Event()

    async def start(self) -> None:
        self.starts += 1
        await self._unless_stopped(self._provider.may_start)
        if self.image in self._provider.broken:
            raise SandboxError("it is broken")
        self.running = True

    async def ping(self, *, timeout_s: float) -> None:
        await self._unless_stopped(self._provider.may_answer)
        await super().ping(timeout_s=timeout_s)

    async def _unless_stopped(self, event: asyncio.Event) -> None:
        waits = [asyncio.create_task(one.wait()) for one in (event, self.stopped)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self.stopped.is_set() and self._provider.starts_notice_stop:
            raise SandboxError("the sandbox was stopped")

    async def stop(self) -> None:
        self.stopped.set()
        await super().stop()


class Provider(SandboxProvider):
    kind = "fake"

    def __init__(self) -> None:
        self.made: list[Sandbox] = []
        self.broken: set[str | None] = set()
        self.expected: Sequence[str | None] = ()
        self.closed = False
        self.starts_notice_stop = True
        self.may_start = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_start.set()
        self.may_answer.set()

    def create(
        self, *, image: str | None, limits: SandboxLimits, user: str | None = None
    ) -> Sandbox:
        self.check(image)
        self.made.append(Sandbox(self, image, limits))
        return self.made[-1]

    def check(self, image: str | None) -> None:
        if image == "refused":
            raise TaskError("there are no such images")

    def prewarm(self, images: Sequence[str | None]) -> None:
        self.expected = images

    async def close(self) -> None:
        self.closed = True

    def running(self) -> list[str | None]:
        return [sandbox.image for sandbox in self.made if sandbox.running]


async def background() -> None:
    """Lets everything run that can run without a change from outside."""
    for _ in range(50):
        await asyncio.sleep(0)


async def started(pool: WarmPool, image: str | None = "a", **options: Any) -> WarmSandbox:
    sandbox = pool.create(image=image, limits=options.get("limits", LIMITS))
    await sandbox.start()
    return sandbox
