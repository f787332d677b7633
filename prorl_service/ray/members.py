"""Kept processes as the supervisor sees them: their actors followed through all restarts."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ray import exceptions

from prorl_service.ray.plan import Node, Report, State

log = logging.getLogger(__name__)

RETRY_S = 0.5
"""Seconds between questions to an actor that does not answer."""

Actor = Any
"""Handle of an actor; Ray has no types for it."""


class Member:
    """One kept process and its actor."""

    def __init__(self, node: Node, actor: Actor, on_change: Callable[[], None]) -> None:
        self.node = node
        self.report = Report(number=-1, state=State.WAITING, since=time.time())
        self._is_told_to_stop = False
        self.is_gone = False
        """True once its actor has ended for good."""
        self.actor = actor
        self._on_change = on_change

    @property
    def is_draining(self) -> bool:
        """True from the beginning of its drain on, even if an earlier supervisor began that."""
        return self._is_told_to_stop or self.report.state in (State.STOPPING, State.STOPPED)

    @property
    def waited_s(self) -> float:
        """Seconds that its actor has waited for room on the node."""
        is_waiting = self.report.state is State.WAITING
        return time.time() - self.report.since if is_waiting else 0.0

    async def follow(self) -> None:
        """Returns when the actor has ended for good."""
        seen = self.report.number
        while not self.is_gone:
            try:
                self._tell(await self.actor.report.remote(seen))
                seen = self.report.number
            except exceptions.ActorDiedError as error:
                self.is_gone = True
                self._tell(self._unreachable(error))
            except exceptions.RayError as error:
                seen = -1  # a new actor counts from the start
                self._tell(self._unreachable(error))
                await asyncio.sleep(RETRY_S)

    async def drain(self) -> None:
        """Returns when its process has ended, or its actor."""
        self._is_told_to_stop = True
        self._on_change()
        try:
            await self.actor.stop.remote()
        except exceptions.RayError as error:
            log.warning("%s ended before it was drained: %s", self.node.name, first_line(error))

    def _tell(self, report: Report) -> None:
        if report != self.report:
            if report.state is not self.report.state:
                text = "%s is %s%s"
                why = f": {report.problem}" if report.problem else ""
                log.info(text, self.node.name, report.state, why)
            self.report = report
            self._on_change()

    def _unreachable(self, error: Exception) -> Report:
        if self.report.state in (State.UNREACHABLE, State.WAITING) and not self.is_gone:
            return self.report
        lost = replace(self.report, number=-1, state=State.UNREACHABLE, pid=0, since=time.time())
        return replace(lost, problem=first_line(error))


def first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
