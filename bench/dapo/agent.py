"""The agent of the workload, as the service runs it: as many turns as `world` says, no sandbox."""

from collections.abc import Sequence
from typing import ClassVar

from bench.dapo import workload
from prorl_service.agents.base import AgentHandler, Prompt, RolloutContext, Verdict
from prorl_service.schemas import FinishReason, Message, Stage, Task

ANSWER = [Message(role="user", content="Go on.")]


class WorldAgent(AgentHandler):
    name: ClassVar[str] = workload.AGENT
    sandbox_stages: ClassVar[frozenset[Stage]] = frozenset()

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._seed = int(str(task.data["seed"]))

    def prompt(self) -> Prompt:
        return Prompt(self.task.messages)

    async def init(self, rollout: RolloutContext) -> None:
        return

    async def run(self, rollout: RolloutContext) -> FinishReason:
        prompt_ids: Sequence[int] = rollout.prompt_ids
        for _ in range(workload.end(self._seed, rollout.rollout_id).turns):
            await rollout.sample(prompt_ids)
            prompt_ids = rollout.next_prompt(ANSWER)
        return FinishReason.FINISHED

    async def eval(self, rollout: RolloutContext) -> Verdict:
        return Verdict(workload.end(self._seed, rollout.rollout_id).reward)
