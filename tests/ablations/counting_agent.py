"""An agent that counts how many of its rollouts are between the start of INIT and the verdict."""

import asyncio
from typing import ClassVar

from prorl_service.agents.base import AgentHandler, Prompt, RolloutContext, Verdict
from prorl_service.schemas import FinishReason, Stage, Task

COUNTING = "tests.ablations.counting_agent:Counting"
EVAL_S = 0.05


class Counting(AgentHandler):
    name: ClassVar[str] = "counting"
    sandbox_stages: ClassVar[frozenset[Stage]] = frozenset()
    at_work: ClassVar[int] = 0
    most: ClassVar[int] = 0

    def __init__(self, task: Task) -> None:
        super().__init__(task)

    def prompt(self) -> Prompt:
        return Prompt(self.task.messages)

    async def init(self, rollout: RolloutContext) -> None:
        Counting.at_work += 1
        Counting.most = max(Counting.most, Counting.at_work)

    async def run(self, rollout: RolloutContext) -> FinishReason:
        await rollout.sample(rollout.prompt_ids)
        return FinishReason.FINISHED

    async def eval(self, rollout: RolloutContext) -> Verdict:
        await asyncio.sleep(EVAL_S)
        Counting.at_work -= 1
        return Verdict(1.0)
