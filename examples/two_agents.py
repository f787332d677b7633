"""Two agents in one rollout, of the same policy: one solves, the other looks for mistakes.

Each conversation is a segment with exact tokens, and the reward is that of the revised answer.

prorl try examples/two_agents.py:SolverAndCritic --engine http://localhost:8000 --task '{
    "messages": [{"role": "user", "content": "What is 17 times 3?"}],
    "data": {"answer": "51"}}'
"""

from typing import ClassVar

from prorl_service.agents.answers import score_answer
from prorl_service.agents.base import AgentHandler, Prompt, RolloutContext, Verdict
from prorl_service.rewards.math import boxed, score_math
from prorl_service.schemas import FinishReason, Message, Stage

BOX = "Put your answer in \\boxed{}."
CRITIC = "You check solutions. Name the first mistake, or say that there is none."


class SolverAndCritic(AgentHandler):
    name: ClassVar[str] = "solver_and_critic"
    sandbox_stages: ClassVar[frozenset[Stage]] = frozenset()

    def prompt(self) -> Prompt:
        return Prompt([Message(role="system", content=BOX), *self.task.messages])

    async def init(self, rollout: RolloutContext) -> None:
        """Nothing to prepare."""

    async def run(self, rollout: RolloutContext) -> FinishReason:
        asked = list(self.prompt().messages)
        draft = await self._said(rollout, asked)
        problem = f"{asked[-1].content}\n\nA solution:\n{draft}"
        critic = [Message(role="system", content=CRITIC), Message(role="user", content=problem)]
        critique = await self._said(rollout, critic)
        asked.append(Message(role="assistant", content=draft))
        asked.append(Message(role="user", content=f"A reader says: {critique}\nAnswer again."))
        await self._said(rollout, asked)
        return FinishReason.FINISHED

    async def _said(self, rollout: RolloutContext, messages: list[Message]) -> str:
        rollout.begin(Prompt(messages))
        turn = await rollout.sample(rollout.prompt_ids)
        return rollout.reply(turn).content

    async def eval(self, rollout: RolloutContext) -> Verdict:
        answer = boxed(rollout.answer)
        if answer is None:
            return Verdict(0.0)
        gold = str(self.task.data["answer"])
        reward, _ = await score_answer(rollout, score_math, answer, gold)
        return Verdict(reward)
