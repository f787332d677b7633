"""Dynamic sampling without verdicts before a group's last end, and without cancellations."""

from collections.abc import Callable, Sequence

from prorl_service.rollouts.executor import RolloutExecutor
from prorl_service.sampling.filter import Outcome, Scores, outcome
from prorl_service.schemas import Group, Rollout
from prorl_service.schemas.sampling import Filter


def verdict_on_whole(scores: Scores, n: int, wanted: Filter) -> Outcome:
    """Returns the verdict on a group of `n` rollouts, once all of them have ended."""
    return outcome(scores, n, wanted) if len(scores) == n else Outcome.OPEN


class NothingCancelled:
    """The executor, for samplers: groups that they release run to their end, and hold slots until
    then. The sampler does not count them any more. With `surplus="cancel"`, the surplus of a draw
    is among them."""

    def __init__(self, executor: RolloutExecutor) -> None:
        self._executor = executor

    @property
    def slots(self) -> int:
        return self._executor.slots

    def group_ids(self) -> list[str]:
        return self._executor.group_ids()

    def rollout_ids(self, group_id: str) -> list[str]:
        return self._executor.rollout_ids(group_id)

    async def submit(self, groups: Sequence[Group]) -> object:
        return await self._executor.submit(groups)

    async def watch(self, rollout_ids: Sequence[str], on_end: Callable[[Rollout], None]) -> None:
        await self._executor.watch(rollout_ids, on_end)

    async def cancel(self, rollout_ids: Sequence[str]) -> None:
        """Waits for the end of the rollouts. Raises `NotFound`."""
        async for _ in self._executor.ended(rollout_ids):
            pass

    async def acknowledge(self, group_ids: Sequence[str]) -> None:
        await self._executor.acknowledge(group_ids)
