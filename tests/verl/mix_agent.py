"""The agent of the comparison: rollouts of given lengths, whose rewards differ or do not."""

import asyncio
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from prorl_service.agents.base import AgentHandler, Prompt, RolloutContext, Verdict
from prorl_service.schemas import FinishReason, Task


class MixData(BaseModel):
    model_config = ConfigDict(extra="forbid")

    pauses_s: list[float]
    """Seconds that each rollout of a group works, in addition to sampling; in turn."""
    is_informative: bool


class MixAgent(AgentHandler):
    name: ClassVar[str] = "mix"

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.data = MixData.model_validate(task.data)

    def prompt(self) -> Prompt:
        return Prompt(self.task.messages)

    async def init(self, rollout: RolloutContext) -> None: ...

    async def run(self, rollout: RolloutContext) -> FinishReason:
        await rollout.sample(rollout.prompt_ids)
        await asyncio.sleep(self.data.pauses_s[_index(rollout) % len(self.data.pauses_s)])
        return FinishReason.FINISHED

    async def eval(self, rollout: RolloutContext) -> Verdict:
        """Rewards every other rollout of an informative task."""
        return Verdict(float(self.data.is_informative and _index(rollout) % 2))


def _index(rollout: RolloutContext) -> int:
    return int(rollout.rollout_id.rpartition(".")[2])
