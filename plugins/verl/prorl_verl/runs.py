"""Groups that a trainer wants whole: submitted, awaited, stored, whatever happens meanwhile.

Missing groups are submitted again to a service that was restarted and remembers nothing. A group
that has not ended at its deadline continues without the rollouts that have not.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress

from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.client.sampling import HOPELESS, AllGroupsFail
from prorl_service.client.trainable import failure_of
from prorl_service.schemas import Group, Rollout
from prorl_verl import store
from prorl_verl.scoring import Scored
from prorl_verl.store import Prompt

logger = logging.getLogger(__name__)

Score = Callable[[Prompt, Sequence[Rollout]], Awaitable[list[Scored]]]

RESTART_DELAY_S = 5.0


class GroupRuns:
    def __init__(self, client: AsyncRolloutClient, *, score: Score, deadline_s: float) -> None:
        self._client = client
        self._score = score
        self._deadline_s = deadline_s
        self._running: dict[str, Prompt] = {}
        """Prompts in flight, by group."""
        self._lost = 0
        self._last_loss = ""

    def check_hope(self) -> None:
        """Raises `AllGroupsFail`."""
        if self._lost >= HOPELESS:
            raise AllGroupsFail(
                f"{self._lost} groups in a row have no rollout to train on: {self._last_loss}"
            )

    def rollout_ids(self) -> list[str]:
        """Ids of all rollouts that have not ended."""
        return [one for prompt in self._running.values() for one in prompt.group.rollout_ids()]

    async def run(self, prompts: Sequence[Prompt]) -> None:
        """Runs prompts until each has a status in the store; never raises."""
        waiting = {prompt.group.group_id: prompt for prompt in prompts}
        self._running |= waiting
        try:
            await store.mark(prompts, "running")
            groups = [prompt.group for prompt in prompts]
            async for group, rollouts in ended(self._client, groups, self._deadline_s):
                await self._write(waiting[group.group_id], rollouts)
                del waiting[group.group_id], self._running[group.group_id]
        except Exception as error:
            logger.exception("%d groups are lost", len(waiting))
            self._lost += len(waiting)
            self._last_loss = str(error)
        finally:
            for group_id in waiting:
                self._running.pop(group_id, None)
            await store.mark(list(waiting.values()), "failure")

    async def _write(self, prompt: Prompt, rollouts: Sequence[Rollout]) -> None:
        scored = await self._score(prompt, rollouts)
        entries = store.Entries()
        entries.add(prompt, scored)
        self._lost = 0 if entries.keys else self._lost + 1
        failures = [failure_of(rollout) for rollout, _ in scored]
        reasons = [failure.message for failure in failures if failure is not None]
        self._last_loss = reasons[-1] if reasons else "the rollouts were cut off"
        await store.put(prompt, entries)
        with suppress(ServiceCallError):  # it expires
            await self._client.acknowledge([prompt.group.group_id])


async def ended(
    client: AsyncRolloutClient, groups: Sequence[Group], deadline_s: float
) -> AsyncIterator[tuple[Group, list[Rollout]]]:
    """Yields each group with its rollouts, in the order in which they end."""
    deadline = asyncio.get_running_loop().time() + deadline_s
    missing = {group.group_id: group for group in groups}
    while missing:
        found: dict[str, list[Rollout]] = {name: [] for name in missing}
        try:
            await client.submit(list(missing.values()), invalid="fail")
            ids = [one for group in missing.values() for one in group.rollout_ids()]
            left_s = deadline - asyncio.get_running_loop().time()
            async for rollout in client.finish(ids, left_s):
                siblings = found[rollout.group_id]
                siblings.append(rollout)
                if len(siblings) == missing[rollout.group_id].n:
                    yield missing.pop(rollout.group_id), siblings
        except ServiceCallError as error:
            if not error.is_forgotten:
                raise
            logger.warning("the service was restarted; %d groups start again", len(missing))
            await asyncio.sleep(RESTART_DELAY_S)
