"""Calls that wait for room at an engine: first come, first served.

Calls that can go to the same engines wait in one line. Room goes to the calls at the front, the
longest waiting first; the others sleep, since checking hundreds of them would cost more than the
call that made the room. `place` decides which engine takes which call.
"""

import asyncio
import heapq
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from prorl_service.inference.member import PoolMember
from prorl_service.inference.routing import RouteRequest


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


class Lines:
    def __init__(
        self,
        place: Callable[[Waiting], bool],
        give_back: Callable[[RouteRequest, PoolMember], None],
    ) -> None:
        """`place` sets the call's `turn`, or returns False if there is no room. `give_back` frees
        the room of a call that was cancelled before it noticed its turn."""
        self._place = place
        self._give_back = give_back
        self._lines: dict[Hashable, OrderedDict[Waiting, None]] = {}

    async def turn(self, waiting: Waiting) -> PoolMember | None:
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
            self.admit()  # calls behind it have not been checked
        elif (member := waiting.turn.result()) is not None:
            self._give_back(waiting.call, member)

    def _remove(self, waiting: Waiting) -> None:
        line = self._lines.get(waiting.line)
        if line is not None and waiting in line:
            del line[waiting]
            if not line:
                del self._lines[waiting.line]

    def admit(self) -> None:
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

    def look_again(self) -> None:
        """Ends all waits, in their order, without an engine: the calls may belong in other
        lines."""
        everyone = [waiting for line in self._lines.values() for waiting in line]
        self._lines.clear()
        for waiting in sorted(everyone, key=lambda one: one.number):
            if not waiting.turn.done():
                waiting.turn.set_result(None)
