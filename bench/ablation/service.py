"""`prorl` with worse parts: `python -m bench.ablation.service "SWITCH SWITCH" serve OPTIONS`.

A switch replaces parts of the service in its modules, so the service knows nothing of them. For
measurements, and not for training.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

from bench.ablation import routers
from prorl_service.cli.main import main
from prorl_service.inference.pool import BackendPool
from prorl_service.inference.routing import Router
from prorl_service.pipeline.stage import StagePool, StageWork
from prorl_service.rollouts.executor import RolloutExecutor
from prorl_service.rollouts.record import RolloutRecord
from prorl_service.sampling.filter import GroupState, Scores, outcome
from prorl_service.sampling.manager import SamplerManager
from prorl_service.schemas import Stage
from prorl_service.schemas.sampling import Filter

ROUTERS: Mapping[str, Callable[[], Router]] = {
    "routing=min-heap": routers.MinHeap,
    "routing=hash": routers.ConsistentHash,
    "routing=random": routers.Random,
    "routing=not-sticky": routers.NotSticky,
}


class InTurn(StagePool):
    """A stage without workers: the worker of the stage before does its work, and is held until it
    is done. No READY queue, so INIT does not work ahead of RUN."""

    async def put(self, record: RolloutRecord) -> None:
        if record.cancel_requested:
            await super().put(record)
        else:
            record.is_waiting = True
            await self._take(record)


def in_turn(stage: Stage, work: StageWork, **options: Any) -> StagePool:
    if stage is Stage.INIT:
        return StagePool(stage, work, **options)
    return InTurn(stage, work, **{**options, "workers": 0})


class NothingCancelled:
    """The executor, for samplers: groups that they release run to their end, and hold slots until
    then. The sampler does not count them any more."""

    def __init__(self, executor: RolloutExecutor) -> None:
        self._executor = executor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    async def cancel(self, rollout_ids: Sequence[str]) -> None:
        """Waits for the end of the rollouts. Raises `NotFound`."""
        async for _ in self._executor.ended(rollout_ids):
            pass


def without_cleanup(journal: Any, executor: Any, weights: Any) -> SamplerManager:
    executor = NothingCancelled(executor)  # of which a sampler needs a part
    return SamplerManager(journal, executor, weights)


def verdict_on_whole(scores: Scores, n: int, wanted: Filter) -> GroupState:
    """Returns the verdict on a group of `n` rollouts, once all of them have ended."""
    return outcome(scores, n, wanted) if len(scores) == n else GroupState.UNDER_WAY


def _replacement(switch: str) -> tuple[str, object]:
    """Returns the path of the part that goes, and what takes its place."""
    if switch in ROUTERS:
        made = partial(BackendPool, router=ROUTERS[switch]())
        return "prorl_service.server.compose.BackendPool", made
    return {
        "pipeline=serial": ("prorl_service.pipeline.pipeline.StagePool", in_turn),
        "sampler=no-cleanup": ("prorl_service.server.compose.SamplerManager", without_cleanup),
        "sampler=no-early-verdict": ("prorl_service.sampling.sampler.outcome", verdict_on_whole),
    }[switch]


@contextmanager
def replaced(switches: Iterable[str]) -> Iterator[None]:
    """Services that are made inside have the worse parts. Raises `KeyError` for an unknown one."""
    with ExitStack() as stack:
        for switch in switches:
            stack.enter_context(patch(*_replacement(switch)))
        yield


if __name__ == "__main__":
    with replaced(sys.argv.pop(1).split()):
        main()
