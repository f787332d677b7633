"""Agents for the tests of engines that only take some turns."""

from typing import ClassVar

from prorl_service.agents.base import AgentHandler, Prompt, RolloutContext, Verdict
from prorl_service.schemas import FinishReason

TURNS = 4


class TurnsAgent(AgentHandler):
    name: ClassVar[str] = "turns"
    sandbox_stages = frozenset()

    def prompt(self) -> Prompt:
        return Prompt(self.task.messages)

    async def init(self, rollout: RolloutContext) -> None: ...

    async def run(self, rollout: RolloutContext) -> FinishReason:
        for _ in range(TURNS):
            await rollout.sample(rollout.prompt_ids)
        return FinishReason.FINISHED

    async def eval(self, rollout: RolloutContext) -> Verdict:
        return Verdict(float(len(rollout.turns)))


class OneTurnAgent(TurnsAgent):
    name: ClassVar[str] = "one-turn"

    async def run(self, rollout: RolloutContext) -> FinishReason:
        last = await rollout.sample(rollout.prompt_ids)
        return FinishReason.LENGTH if last.finish_reason == "length" else FinishReason.FINISHED
