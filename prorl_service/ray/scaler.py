"""The requests of all runs to Ray's autoscaler, which knows one request for the whole cluster.

An actor that all supervisors of a cluster share.
"""

import asyncio
import logging
import time
from collections.abc import Mapping

from ray.autoscaler.sdk import request_resources

log = logging.getLogger(__name__)

NAME = "scaler"
FORGET_S = 60.0
"""Seconds after which a run that renews its request no more is left out."""


class Scaler:
    def __init__(self) -> None:
        self._requests: dict[str, tuple[float, list[dict[str, float]]]] = {}
        """Time and bundles of each run's last request."""
        self._requested: list[dict[str, float]] | None = None

    async def request(self, run: str, bundle: Mapping[str, float], count: int) -> None:
        """Asks for a cluster that has room for `count` times `bundle` for `run`, and for all other
        runs."""
        now = time.monotonic()
        self._requests[run] = now, [dict(bundle)] * count
        self._requests = {
            name: one for name, one in self._requests.items() if now - one[0] < FORGET_S
        }
        bundles = [bundle for _, (_, some) in sorted(self._requests.items()) for bundle in some]
        if bundles != self._requested:
            log.info("asking for room for %d services", len(bundles))
            await asyncio.to_thread(request_resources, bundles=bundles)
            self._requested = bundles
