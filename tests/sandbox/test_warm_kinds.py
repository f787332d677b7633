"""The pool of warm sandboxes, and containers started ahead, with real sandboxes of every kind."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from prorl_service.errors import SandboxError
from prorl_service.sandbox.base import Sandbox, SandboxLimits, SandboxProvider
from prorl_service.sandbox.host.sandbox import RemoteSandbox
from prorl_service.sandbox.host.zygotes import MAX_AHEAD
from prorl_service.sandbox.kinds.apptainer import ApptainerProvider
from prorl_service.sandbox.warm_pool import WarmPool
from tests.sandbox.images.debian import debian_image
from tests.sandbox.sandboxes import LIMITS, Kind, image_of, new_provider
from tests.sandbox.test_sandbox_lifecycle import held
from tests.waits import condition

pytestmark = pytest.mark.processes


class Recording(SandboxProvider):
    """Records what another provider makes."""

    def __init__(self, provider: SandboxProvider) -> None:
        self.kind = provider.kind
        self.made: list[RemoteSandbox] = []
        self._provider = provider

    def create(
        self, *, image: str | None, limits: SandboxLimits, user: str | None = None
    ) -> RemoteSandbox:
        sandbox = self._provider.create(image=image, limits=limits)
        assert isinstance(sandbox, RemoteSandbox)
        self.made.append(sandbox)
        return sandbox

    async def close(self) -> None:
        await self._provider.close()


@asynccontextmanager
async def pool_of(kind: Kind, spares: int) -> AsyncIterator[WarmPool]:
    pool = WarmPool(new_provider(kind), spares=spares)
    try:
        yield pool
    finally:
        await pool.close()


async def run(sandbox: Sandbox, command: str) -> str:
    return (await sandbox.call_tool("bash", {"command": command}, timeout_s=20)).output


async def once(pool: WarmPool, image: str | None) -> str:
    sandbox = pool.create(image=image, limits=LIMITS)
    try:
        await sandbox.start()
        return await run(sandbox, "sleep 1000 & ls; echo x >file")
    finally:
        await sandbox.stop()


async def test_two_hundred_cycles_leave_nothing_behind(kind: Kind) -> None:
    image = image_of(kind)
    async with pool_of(kind, spares=1) as pool:  # makes what is made only once
        await once(pool, image)
    before = held()
    async with pool_of(kind, spares=8) as pool:
        for _ in range(20):
            pool.prewarm([image] * 10)
            outputs = await asyncio.gather(*(once(pool, image) for _ in range(10)))
            assert "file" not in "".join(outputs)
        assert (pool.running, pool.hits + pool.misses) == (0, 200)
        assert pool.hits > 0
    assert held() == before


async def test_a_killed_spare_is_not_handed_out(kind: Kind) -> None:
    image = image_of(kind)
    provider = Recording(new_provider(kind))
    pool = WarmPool(provider, spares=3)
    await once(pool, image)
    pool.prewarm([image] * 3)
    await condition(lambda: pool.counts()["warm"] == 3)
    for sandbox in provider.made[-3:-1]:
        psutil.Process(sandbox.server_pid).kill()
    user = pool.create(image=image, limits=LIMITS)
    await user.start()
    assert await run(user, "echo alive") == "alive\n"
    assert (pool.hits, pool.misses) == (1, 1)
    await user.stop()
    await pool.close()


@pytest.mark.parametrize("delay_ms", [0, 2, 5, 10, 20, 50])
@pytest.mark.sampled(5)
async def test_closing_while_spares_start_leaves_nothing(kind: Kind, delay_ms: int) -> None:
    image = image_of(kind)
    async with pool_of(kind, spares=1) as pool:
        await once(pool, image)
    before = held()
    async with pool_of(kind, spares=4) as pool:
        pool.prewarm([image] * 4)
        await asyncio.sleep(delay_ms / 1000)
    assert held() == before


@pytest.mark.parametrize("delay_ms", [0, 1, 2, 5, 10])
@pytest.mark.parametrize("way", ["stop", "cancel"])
@pytest.mark.sampled(8)
async def test_ending_a_start_leaves_nothing(kind: Kind, delay_ms: int, way: str) -> None:
    image = image_of(kind)
    async with pool_of(kind, spares=1) as pool:
        await once(pool, image)
    before = held()
    async with pool_of(kind, spares=2) as pool:
        await once(pool, image)
        users = [pool.create(image=image, limits=LIMITS) for _ in range(4)]
        starts = [asyncio.create_task(user.start()) for user in users]
        await asyncio.sleep(delay_ms / 1000)
        if way == "cancel":
            for start in starts:
                start.cancel()
        else:
            await asyncio.gather(*(user.stop() for user in users))
        await asyncio.gather(*starts, return_exceptions=True)
        await asyncio.gather(*(user.stop() for user in users))
        assert pool.running == 0
    assert held() == before


# --- containers ahead ---------------------------------------------------------------------------


class Images:
    """Gives every name the same image, and records which names are in use."""

    def __init__(self) -> None:
        self.in_use: list[str] = []
        self.fetched: list[str] = []

    @asynccontextmanager
    async def image(self, reference: str) -> AsyncIterator[Path]:
        self.in_use.append(reference)
        self.fetched.append(reference)
        try:
            if "broken" in reference:
                raise SandboxError("cannot be fetched")
            yield debian_image()
        finally:
            self.in_use.remove(reference)


async def test_containers_are_started_for_the_first_images_expected() -> None:
    images = Images()
    provider = ApptainerProvider(images.image)
    names = [f"docker://registry.test/image:{number}" for number in range(2 * MAX_AHEAD)]
    provider.prewarm([name for name in names for _ in range(3)])
    await condition(lambda: len(images.in_use) == MAX_AHEAD)
    assert images.fetched == names[:MAX_AHEAD]
    provider.prewarm(names[1:3])
    sandbox = provider.create(image=names[1], limits=LIMITS)
    await sandbox.start()
    assert await run(sandbox, "echo up") == "up\n"
    await sandbox.stop()
    assert images.fetched == names[:MAX_AHEAD]
    await provider.close()
    assert not images.in_use


async def test_a_container_that_fails_ahead_is_retried_only_on_request() -> None:
    images = Images()
    provider = ApptainerProvider(images.image)
    for _ in range(5):
        provider.prewarm(["broken"])
        await asyncio.sleep(0)
    assert len(images.fetched) == 1
    with pytest.raises(SandboxError, match="cannot be fetched"):
        await provider.create(image="broken", limits=LIMITS).start()
    await provider.close()
    assert not images.in_use
