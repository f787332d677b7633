"""Dispatch of calls: the router chooses among the engines that can serve; without room, calls wait.

First come, first served: calls that can go to the same engines wait in one line. Room goes to the
calls at the front, the longest waiting first; the others sleep, since checking hundreds of them
would cost more than the call that made the room. `membership` knows which engines exist and serve.
"""

import asyncio
import heapq
from collections import OrderedDict
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field
from itertools import count

from prorl_service.errors import BackendUnavailable
from prorl_service.inference.member import PoolMember
from prorl_service.inference.model import CurrentModel
from prorl_service.inference.routing import Router, RouteRequest
from prorl_service.inference.weights.updates import WeightUpdates
from prorl_service.schemas import BackendState
from prorl_service.utils.tasks import Changes

RETRY_S = 0.5
"""Seconds before a call is retried at the same backend; twice as long before the second retry."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A call that has no engine yet."""

    call: RouteRequest
    model: str
    failed: frozenset[str]
    """Engines that have failed the call."""
    context: int
    """Tokens of context that the call needs; 0 if every engine in use offers them."""
    number: int
    """Place among all waiting calls; kept until the call has an engine."""
    turn: "asyncio.Future[PoolMember | None]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """The call's engine, with the call counted there; None: the call must be routed again, such as
    when no engine could take it even with room."""

    @property
    def line(self) -> Hashable:
        return (self.model, self.call.pinned, self.failed, self.context)


class Dispatch:
    def __init__(
        self,
        members: Mapping[str, PoolMember],
        updates: WeightUpdates,
        model: CurrentModel,
        router: Router,
        *,
        wait_s: float,
    ) -> None:
        """`members`: the pool's own. `wait_s`: how long a call waits while no backend is healthy,
        updates not counted."""
        self._members = members
        self._updates = updates
        self._model = model
        self._router = router
        self._wait_s = wait_s
        self._lines: dict[Hashable, OrderedDict[Waiting, None]] = {}
        self._numbers = count()
        self._least_context = 0
        self.changes = Changes()
        """Changes that `announce_change` announces."""

    def announce_change(self) -> None:
        """Must be called after changes of backends, their states, their weights or the model."""
        self.changes.notify()
        if self._model.least_context != self._least_context:
            self._least_context = self._model.least_context
            self._look_again()
        self._admit()

    def healthy(self) -> list[PoolMember]:
        return [
            member
            for member in self._members.values()
            if member.state is BackendState.HEALTHY and member.loaded is self._updates.wanted
        ]

    async def route(
        self, model: str, call: RouteRequest, failed: Collection[PoolMember]
    ) -> PoolMember:
        """Returns the member that will serve the call, after counting the call's work there.

        Waits while all able members are full. Raises `BackendUnavailable` if no member becomes
        healthy within the budget, if healthy ones serve another model, or if all that offered
        enough context are gone; `WeightsRejected` if the weights that it waits for are unfit.
        """
        number = next(self._numbers)
        must_pause = bool(failed)
        while True:
            await self._until_able(model, call)
            self._model.require(model)
            waiting = Waiting(
                call,
                model,
                frozenset(member.backend_id for member in failed),
                call.context if call.context > self._model.least_context else 0,
                number,
            )
            if must_pause and not self._proven(waiting):  # no proven member: not immediately
                await asyncio.sleep(RETRY_S * len(failed))
                must_pause = False
            elif member := await self._turn(waiting):
                return member

    def end(self, call: RouteRequest, member: PoolMember) -> None:
        member.load.end(call.work_at(member.backend_id))
        self._admit()

    def _able(self, call: RouteRequest) -> list[PoolMember]:
        return [member for member in self.healthy() if member.context >= call.context]

    def _proven(self, waiting: Waiting) -> list[PoolMember]:
        """Returns able members that have not failed this call and whose last call did not fail; the
        latter does not matter for the pinned one."""
        return [
            member
            for member in self._able(waiting.call)
            if member.backend_id not in waiting.failed
            and (member.backend_id == waiting.call.pinned or not member.failed_calls)
        ]

    def _place(self, waiting: Waiting) -> bool:
        candidates = self._proven(waiting) or self._able(waiting.call)
        if not candidates or not self._model.is_in_use(waiting.model):
            waiting.turn.set_result(None)
            return True
        loads = {member.backend_id: member.load for member in candidates}
        chosen = self._router.choose(waiting.call, loads)
        if chosen is None:
            return False
        member = self._members[chosen]
        member.load.begin(waiting.call.work_at(chosen))
        waiting.turn.set_result(member)
        return True

    async def _until_able(self, model: str, call: RouteRequest) -> None:
        loop = asyncio.get_running_loop()
        left_s, known = self._wait_s, self._updates.refusal
        while not self._able(call):
            if self.healthy():
                self._model.require(model)
                self._check_context(call)
            updating = any(m.state is BackendState.UPDATING for m in self._members.values())
            asked_at = loop.time()
            try:
                async with asyncio.timeout(None if updating else left_s):
                    await self.changes.wait()
            except TimeoutError:
                raise self._nobody_healthy() from None
            self._updates.raise_refusal_after(known)
            if not updating:
                left_s -= loop.time() - asked_at

    def _check_context(self, call: RouteRequest) -> None:
        """Raises `BackendUnavailable` if no engine in use could take the call even when healthy."""
        if all(member.context < call.context for member in self._members.values()):
            raise BackendUnavailable(
                f"the call may need {call.context} tokens of context, but the engines that offered "
                f"them are gone: those in use offer {self._model.least_context}",
                hint="the rollout starts over with what they offer",
            )

    def _nobody_healthy(self) -> BackendUnavailable:
        return BackendUnavailable(
            f"no backend was healthy for {self._wait_s:g} s",
            hint=self._model.problems() or "there are no backends; POST one to /v1/backends",
        )

    # --- lines ----------------------------------------------------------------------------------

    async def _turn(self, waiting: Waiting) -> PoolMember | None:
        """Returns the call's turn, immediately if there is room and its line is empty."""
        if (self._lines and waiting.line in self._lines) or not self._place(waiting):
            self._lines.setdefault(waiting.line, OrderedDict())[waiting] = None
        try:
            return await waiting.turn
        except asyncio.CancelledError:
            self._leave(waiting)
            raise

    def _leave(self, waiting: Waiting) -> None:
        if waiting.turn.cancelled():
            self._remove(waiting)
            self._admit()  # calls behind it have not been checked
        elif (member := waiting.turn.result()) is not None:
            self.end(waiting.call, member)

    def _remove(self, waiting: Waiting) -> None:
        line = self._lines.get(waiting.line)
        if line is not None and waiting in line:
            del line[waiting]
            if not line:
                del self._lines[waiting.line]

    def _admit(self) -> None:
        """Hands out the available room. Must be called whenever there may be more."""
        if not self._lines:
            return
        fronts = [(next(iter(line)).number, next(iter(line))) for line in self._lines.values()]
        heapq.heapify(fronts)
        while fronts:
            _, waiting = heapq.heappop(fronts)
            if waiting.turn.cancelled() or self._place(waiting):
                self._remove(waiting)
                if line := self._lines.get(waiting.line):
                    heapq.heappush(fronts, (next(iter(line)).number, next(iter(line))))

    def _look_again(self) -> None:
        """Ends all waits, in their order, without an engine: the calls may belong in other
        lines."""
        everyone = [waiting for line in self._lines.values() for waiting in line]
        self._lines.clear()
        for waiting in sorted(everyone, key=lambda one: one.number):
            if not waiting.turn.done():
                waiting.turn.set_result(None)
