"""The agent of the load: so many model calls one after the other, without a sandbox.

Imports nothing large, since the front that imports it is measured.
"""

import asyncio
from collections.abc import Iterator
from typing import ClassVar
from uuid import uuid4

from prorl_service.agents.base import AgentHandler, Prompt, RolloutContext, Verdict
from prorl_service.client import AsyncRolloutClient
from prorl_service.schemas import FinishReason, Group, Message, RolloutState, Stage, Task

AGENT = ("--agent", "bench.nodes.agent:Calls")
GROUP_SIZE, WAIT_S = 8, 600.0


class Calls(AgentHandler):
    """Makes `calls` of its task's data."""

    name: ClassVar[str] = "calls"
    sandbox_stages: ClassVar[frozenset[Stage]] = frozenset()

    def prompt(self) -> Prompt:
        return Prompt(self.task.messages)

    async def init(self, rollout: RolloutContext) -> None:
        return

    async def run(self, rollout: RolloutContext) -> FinishReason:
        prompt_ids = rollout.prompt_ids
        for _ in range(self.calls(rollout)):
            await rollout.sample(prompt_ids)
            prompt_ids = rollout.next_prompt([Message(role="user", content="Go on.")])
        return FinishReason.FINISHED

    def calls(self, rollout: RolloutContext) -> int:
        return int(str(self.task.data["calls"]))

    async def eval(self, rollout: RolloutContext) -> Verdict:
        return Verdict(1.0)


def group(calls: int, tokens: int = 0, prompt: str = "Go on.") -> Group:
    """`tokens`: sampled tokens that a stub service makes of a rollout."""
    message = Message(role="user", content=prompt)
    data = {"calls": calls, "tokens": tokens}
    task = Task(task_id="t", agent=Calls.name, messages=[message], data=data)
    return Group(group_id=uuid4().hex, task=task, n=GROUP_SIZE)


async def run(
    client: AsyncRolloutClient, groups: Iterator[Group], at_once: int, sizes: list[int]
) -> None:
    """Runs the groups, so many at once, and adds the bytes of each rollout's content to `sizes`.
    Raises `RuntimeError` for a rollout that fails."""

    async def work() -> None:
        for submitted in groups:
            await client.submit([submitted])
            async for one, content in client.parts(submitted.rollout_ids(), WAIT_S):
                if one.state is not RolloutState.DONE:
                    raise RuntimeError(f"{one.rollout_id} is {one.state}: {one.error}")
                sizes.append(len(content))
            await client.acknowledge([submitted.group_id])

    async with asyncio.TaskGroup() as workers:
        for _ in range(at_once):
            workers.create_task(work())
