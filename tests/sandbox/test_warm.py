"""The pool of warm sandboxes, over fakes that start, fail and die on demand."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from prorl_service.errors import SandboxError, TaskError
from prorl_service.sandbox.base import SandboxLimits, SandboxProvider, ToolResult
from prorl_service.sandbox.warm import PARALLEL_STARTS, WarmSandbox, WarmSandboxes
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

    def create(self, *, image: str | None, limits: SandboxLimits) -> Sandbox:
        self.check(image)
        self.made.append(Sandbox(self, image, limits))
        return self.made[-1]

    def check(self, image: str | None) -> None:
        if image == "refused":
            raise TaskError("there are no such images")

    def expect(self, images: Sequence[str | None]) -> None:
        self.expected = images

    async def close(self) -> None:
        self.closed = True

    def running(self) -> list[str | None]:
        return [sandbox.image for sandbox in self.made if sandbox.running]


@pytest.fixture
def provider() -> Provider:
    return Provider()


async def background() -> None:
    """All that can go on without a change from outside."""
    for _ in range(50):
        await asyncio.sleep(0)


async def started(pool: WarmSandboxes, image: str | None = "a", **options: Any) -> WarmSandbox:
    sandbox = pool.create(image=image, limits=options.get("limits", LIMITS))
    await sandbox.start()
    return sandbox


async def test_what_is_expected_is_there_before_it_is_asked_for(provider: Provider) -> None:
    pool = WarmSandboxes(provider, spares=4)
    pool.expect(["a", "b"])
    assert provider.expected == ["a", "b"]
    await background()
    provider.may_start.clear()
    assert await (await started(pool, "b")).call_tool("bash", {}, timeout_s=1) == ToolResult("b")
    await started(pool, "a")
    assert pool.counts() == {"kind": "fake", "running": 2, "warm": 0, "hits": 2, "misses": 0}


async def test_the_soonest_are_made_first_a_few_at_a_time(provider: Provider) -> None:
    pool = WarmSandboxes(provider, spares=4)
    provider.may_start.clear()
    pool.expect(["a", "b", "a", "c", "d"])
    await background()
    assert [sandbox.image for sandbox in provider.made] == ["a", "b"]
    assert len(provider.made) == PARALLEL_STARTS
    provider.may_start.set()
    await background()
    assert provider.running() == ["a", "b", "a", "c"]


async def test_those_not_expected_any_more_make_room(provider: Provider) -> None:
    pool = WarmSandboxes(provider, spares=3)
    pool.expect(["a", "a", "b"])
    await background()
    pool.expect(["b", "c"])
    await background()
    assert provider.running() == ["b", "c"]


async def test_a_start_uses_up_what_was_expected(provider: Provider) -> None:
    pool = WarmSandboxes(provider, spares=2)
    pool.expect(["a", "a", "b", "c"])
    await background()
    first = await started(pool)
    await background()
    assert pool.counts()["warm"] == 2
    assert sorted(map(str, provider.running())) == ["a", "a", "b"]
    await first.stop()


async def test_without_expectations_what_was_used_last_is_replaced(provider: Provider) -> None:
    pool = WarmSandboxes(provider, spares=2)
    for image in ("a", "b", "b"):
        await (await started(pool, image)).stop()
        await background()
    assert provider.running() == ["b", "b"]
    await started(pool, "b")
    await background()
    assert provider.running() == ["b", "b", "b"]


async def test_a_spare_has_the_limits_that_are_usual(provider: Provider) -> None:
    pool = WarmSandboxes(provider, spares=2)
    pool.expect(["a"])
    await background()
    sandbox = await started(pool, limits=OTHER_LIMITS)
    assert (pool.hits, pool.misses) == (0, 1)
    pool.expect(["b"])
    await background()
    assert {one.limits for one in provider.made if one.image == "b"} == {OTHER_LIMITS}
    await sandbox.stop()


async def test_nobody_notices_spares_that_died(provider: Provider) -> None:
    pool = WarmSandboxes(provider, spares=3)
    pool.expect(["a"] * 3)
    await background()
    dead = provider.made[:2]
    for sandbox in dead:
        sandbox.running = False
    await started(pool)
    assert (pool.hits, pool.misses) == (1, 0)
    await background()
    assert all(sandbox.stopped.is_set() for sandbox in dead)
    for sandbox in provider.made:
        sandbox.running = False
    user = await started(pool)
    await user.ping(timeout_s=1)
    assert pool.misses == 1


async def test_a_failure_is_logged_and_waits_for_a_better_sign(
    provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    pool = WarmSandboxes(provider, spares=2)
    provider.broken = {"a"}
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            pool.expect(["a", "b", "b"])
            await background()
    assert "it is broken" in caplog.text
    assert [one.image for one in provider.made] == ["a", "b"]
    pool.expect(["a"] * 5)
    with pytest.raises(SandboxError, match="broken"):
        await started(pool)
    provider.broken = set()
    await background()
    assert provider.running() == []
    await started(pool)
    await background()
    assert provider.running() == ["a"] * 3


async def test_an_image_that_failed_is_tried_again_when_it_comes_back(provider: Provider) -> None:
    pool = WarmSandboxes(provider, spares=1)
    provider.broken = {"a"}
    pool.expect(["a"])
    await background()
    provider.broken = set()
    pool.expect(["b"])
    pool.expect(["a"])
    await background()
    assert provider.running() == ["a"]


async def test_spares_are_not_started_while_others_are_handed_out(provider: Provider) -> None:
    pool = WarmSandboxes(provider, spares=2)
    pool.expect(["a"] * 9)
    await background()
    provider.may_answer.clear()
    starts = [asyncio.create_task(started(pool)) for _ in range(2)]
    await background()
    pool.expect(["a"] * 7)
    await background()
    assert len(provider.made) == 2
    provider.may_answer.set()
    await asyncio.gather(*starts)
    await background()
    assert len(provider.made) == 4


async def test_a_start_that_does_not_notice_the_stop_counts_for_nothing(
    provider: Provider,
) -> None:
    pool = WarmSandboxes(provider, spares=0)
    provider.may_start.clear()
    provider.starts_notice_stop = False
    sandbox = pool.create(image="a", limits=LIMITS)
    start = asyncio.create_task(sandbox.start())
    await background()
    await asyncio.gather(sandbox.stop(), start)
    assert pool.counts() == {"kind": "fake", "running": 0, "warm": 0, "hits": 0, "misses": 0}


async def test_what_the_kind_refuses_is_refused(provider: Provider) -> None:
    pool = WarmSandboxes(provider, spares=1)
    with pytest.raises(TaskError, match="no such images"):
        pool.check("refused")
    with pytest.raises(TaskError, match="no such images"):
        pool.create(image="refused", limits=LIMITS)


async def test_a_sandbox_is_used_once(provider: Provider) -> None:
    pool = WarmSandboxes(provider, spares=2)
    for _ in range(10):
        sandbox = await started(pool)
        with pytest.raises(SandboxError, match="only once"):
            await sandbox.start()
        await asyncio.gather(sandbox.stop(), sandbox.stop())
        await background()
    assert {one.starts for one in provider.made} == {1}
    assert (pool.running, pool.hits, pool.misses) == (0, 9, 1)


async def test_one_never_started_can_be_stopped(provider: Provider) -> None:
    sandbox = WarmSandboxes(provider, spares=1).create(image=None, limits=LIMITS)
    with pytest.raises(SandboxError, match="not started"):
        await sandbox.download("file")
    await sandbox.stop()
    with pytest.raises(SandboxError, match="only once"):
        await sandbox.start()
    assert not provider.made


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("way", ["stop", "cancel"])
async def test_ending_a_start_half_way_leaves_nothing(
    provider: Provider, warm: bool, way: str
) -> None:
    pool = WarmSandboxes(provider, spares=1 if warm else 0)
    pool.expect(["a"])
    await background()
    provider.may_start.clear()
    provider.may_answer.clear()
    sandbox = pool.create(image="a", limits=LIMITS)
    start = asyncio.create_task(sandbox.start())
    await background()
    if way == "stop":
        await sandbox.stop()
        with pytest.raises(SandboxError, match="stopped"):
            await start
    else:
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert not provider.running()
        await sandbox.stop()
    await background()
    assert not provider.running()
    assert (pool.running, pool.hits, pool.misses) == (0, 0, 0)


async def test_closing_ends_spares_that_run_and_those_that_start(provider: Provider) -> None:
    pool = WarmSandboxes(provider, spares=4)
    pool.expect(["a", "a", "b", "b"])
    await background()
    provider.may_start.clear()
    pool.expect(["a", "c", "c", "c"])
    await background()
    await pool.close()
    assert not provider.running()
    assert provider.closed
    made = len(provider.made)
    pool.expect(["d"])
    provider.may_start.set()
    await background()
    assert (len(provider.made), provider.running()) == (made, [])


async def test_without_spares_it_only_counts(provider: Provider) -> None:
    pool = WarmSandboxes(provider, spares=0)
    pool.expect(["a", "b"])
    sandbox = await started(pool)
    await background()
    assert provider.running() == ["a"]
    assert pool.counts() == {"kind": "fake", "running": 1, "warm": 0, "hits": 0, "misses": 1}
    await sandbox.stop()


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens in whatever order."""

    images = st.sampled_from(["a", "b", None])

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.in_loop(self._make())
        self.users: list[WarmSandbox] = []
        self.starts: list[asyncio.Task[WarmSandbox]] = []

    async def _make(self) -> None:
        self.provider = Provider()
        self.pool = WarmSandboxes(self.provider, spares=3)

    def in_loop(self, work: Any = None) -> None:
        async def settle() -> None:
            if work is not None:
                await work
            await background()

        self.runner.run(settle())

    @rule(images=st.lists(images, max_size=6))
    def expect(self, images: list[str | None]) -> None:
        async def call() -> None:
            self.pool.expect(images)

        self.in_loop(call())

    @rule(image=images)
    def start(self, image: str | None) -> None:
        async def call() -> None:
            sandbox = self.pool.create(image=image, limits=LIMITS)
            self.users.append(sandbox)
            self.starts.append(asyncio.create_task(self._start(sandbox)))

        self.in_loop(call())

    async def _start(self, sandbox: WarmSandbox) -> WarmSandbox:
        await sandbox.start()
        return sandbox

    @precondition(lambda self: self.users)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        sandbox = self.users.pop(data.draw(st.integers(0, len(self.users) - 1)))
        self.in_loop(sandbox.stop())

    @precondition(lambda self: self.starts)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.starts.pop(data.draw(st.integers(0, len(self.starts) - 1))).cancel()
        self.in_loop()

    @precondition(lambda self: self.provider.made)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.provider.made)).running = False

    @rule(broken=st.sets(images))
    def break_images(self, broken: set[str | None]) -> None:
        self.provider.broken = broken

    @rule(start=st.booleans(), answer=st.booleans())
    def hold(self, start: bool, answer: bool) -> None:
        for event, may in ((self.provider.may_start, start), (self.provider.may_answer, answer)):
            event.set() if may else event.clear()
        self.in_loop()

    @invariant()
    def no_more_than_agreed(self) -> None:
        assert int(self.pool.counts()["warm"]) <= 3
        assert {one.starts for one in self.provider.made} <= {0, 1}
        unowned = len(self.provider.running()) - self.pool.running
        in_hand_out = sum(not start.done() for start in self.starts)
        assert unowned <= 3 + in_hand_out

    def teardown(self) -> None:
        async def end() -> None:
            await asyncio.gather(*(user.stop() for user in self.users))
            await asyncio.gather(*self.starts, return_exceptions=True)
            await self.pool.close()

        self.in_loop(end())
        assert not self.provider.running()
        assert self.pool.running == 0
        self.runner.close()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
