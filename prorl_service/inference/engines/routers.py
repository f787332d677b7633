"""Routers in front of several engines, which are refused: an update would reach one of them.

vllm-router and sglang-router list their engines at a route of their own, which engines lack. Any
other is found by its answers: they come from several processes. Sampling through a router would be
exact, since answers say which weights sampled a token; pauses, weights and versions would not be.
"""

from typing import Any

from prorl_service.errors import BackendError, BackendRejected
from prorl_service.inference.engines.http import EngineHttp

WORKERS = "/workers"
"""Route at which both routers list their engines."""
ANSWERS = 16
"""Concurrent requests when an engine is added: each has a connection of its own. A router that
gives two engines random turns hides one of them in 1 of 32,768 trials."""
HINT = "add each engine behind it by its own address"


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
            text = f"several processes answer at {self._url}: it is a router, not an engine"
            raise BackendRejected(text, hint=HINT)
        self._known += answered.difference(self._known)


async def refuse_listed(http: EngineHttp) -> None:
    """Raises `BackendRejected` if the address is that of a router that lists its engines."""
    try:
        await http.ask("GET", WORKERS, _read)
    except BackendError:  # an engine has no such route; whether it answers, probes find out
        return
    raise BackendRejected(f"{http.url} is a router, not an engine", hint=HINT)


def _read(answer: Any) -> None:
    """Raises `ValueError` and the like for what is not a list of engines, perhaps still empty."""
    for worker in answer["workers"]:
        worker["url"]
