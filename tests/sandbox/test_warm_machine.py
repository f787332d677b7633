"""The pool of warm sandboxes under any events in any order."""

import asyncio
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from prorl_service.sandbox.warm_pool import WarmPool, WarmSandbox
from tests.sandbox.fake_provider import LIMITS, Provider, background


class AnyOrder(RuleBasedStateMachine):
    """Starts, stops, deaths and failures in any order."""

    images = st.sampled_from(["a", "b", None])

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.in_loop(self._make())
        self.users: list[WarmSandbox] = []
        self.starts: list[asyncio.Task[WarmSandbox]] = []

    async def _make(self) -> None:
        self.provider = Provider()
        self.pool = WarmPool(self.provider, spares=3)

    def in_loop(self, work: Any = None) -> None:
        async def settle() -> None:
            if work is not None:
                await work
            await background()

        self.runner.run(settle())

    @rule(images=st.lists(images, max_size=6))
    def prewarm(self, images: list[str | None]) -> None:
        async def call() -> None:
            self.pool.prewarm(images)

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
        assert self.pool.counts()["warm"] <= 3
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
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=30)
