"""The agent of the load: so many model calls one after the other, without a sandbox.

Imports nothing large, since the front that imports it is measured.
"""

from typing import ClassVar
from uuid import uuid4

from prorl_service.agents.base import AgentHandler, Prompt, RolloutContext, Verdict
from prorl_service.schemas import FinishReason, Group, Message, Stage, Task

AGENT = ("--agent", "bench.nodes.agent:Calls")
GROUP_SIZE = 8


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
