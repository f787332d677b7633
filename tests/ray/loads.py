"""Rollouts that are awaited while a test does other things."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from prorl_service.client import RolloutClient
from prorl_service.schemas import Group, Rollout
from tests.front.test_front import ids_of
from tests.server.scored_agent import scored

WAIT_S = 240


def groups_of(name: str, count: int, sleep_s: float) -> list[Group]:
    return [scored(f"{name}{i}", 0, 1, 0, 1, sleep=sleep_s) for i in range(count)]


class Submitted:
    """Groups that are awaited in a thread, for Ray starts nodes in the main one only."""

    def __init__(
        self, client: RolloutClient, groups: Sequence[Group], *, wait_s: float = WAIT_S
    ) -> None:
        self.groups = groups
        self._pool = ThreadPoolExecutor(1)
        client.submit(groups)
        self._ended: Future[list[Rollout]] = self._pool.submit(client.wait, ids_of(groups), wait_s)

    def has_ended(self) -> bool:
        return self._ended.done()

    def ended(self) -> list[Rollout]:
        found = self._ended.result()
        self._pool.shutdown()
        return found


def until(holds: Callable[[], object], within_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.2)
