"""Routers in front of several engines, which are refused: an update would reach one of them.

vllm-router and sglang-router list their engines at a route of their own, which engines lack. Any
other is found by its answers: they come from several processes. Sampling through a router would be
exact, since answers say which weights sampled a token; pauses, weights and versions would not be.
"""

from contextlib import suppress
from typing import Any

from prorl_service.errors import BackendError, BackendRejected
from prorl_service.inference.engines.http import EngineHttp

WORKERS = "/workers"
"""Route at which both routers list their engines."""
ANSWERS = 8
"""Concurrent requests, so that each has a connection of its own, among whose answers another
process is looked for. Of two engines in random turns, one stays hidden in 1 of 128 trials."""
HINT = "give the address of each engine instead of the router's, once for each"


class Processes:
    """The processes that have answered at one address, by the times of their starts."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._known: list[float] = []
        self._are_several = False

    def note(self, *started: float | None) -> None:
        """Notes answers to concurrent requests; None: one does not say. Raises `BackendRejected`,
        from then on, if several processes answer at a time, or an earlier one answers again: a new
        one alone is a restart."""
        answered = {one for one in started if one is not None}
        is_back = not answered.isdisjoint(self._known[:-1])
        self._are_several = self._are_several or is_back or len(answered) > 1
        if self._are_several:
            text = f"several engines answer at {self._url}: it is a router"
            raise BackendRejected(text, hint=HINT)
        self._known += answered.difference(self._known)


async def refuse_listed(http: EngineHttp) -> None:
    """Raises `BackendRejected` if the address is that of a router that lists its engines."""
    count = 0
    with suppress(BackendError):  # an engine has no such route; whether it answers, probes find out
        count = await http.ask("GET", WORKERS, _count)
    if count:
        engines = "an engine" if count == 1 else f"{count} engines"
        raise BackendRejected(f"{http.url} is a router in front of {engines}", hint=HINT)


def _count(answer: Any) -> int:
    return sum(1 for one in answer["workers"] if one["url"])
