"""An agent without tools: the model guesses a number, and is told where to look for it."""

from typing import Any, ClassVar

from prorl_service.agents.base import RolloutContext, Verdict
from prorl_service.schemas import FinishReason, Message
from tests.agents.bare_agent import BareAgent

NUMBER: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Guess."}],
    "data": {"secret": 60},
}
"""A task of the agent's."""


class Guess(BareAgent):
    name: ClassVar[str] = "guess"

    async def run(self, rollout: RolloutContext) -> FinishReason:
        secret, prompt_ids = self.task.data["secret"], rollout.prompt_ids
        assert isinstance(secret, int)
        for _ in range(rollout.limits.max_turns):
            turn = await rollout.sample(prompt_ids)
            guess = int(rollout.reply(turn).content)
            if guess == secret:
                return FinishReason.FINISHED
            hint = "higher" if guess < secret else "lower"
            prompt_ids = rollout.next_prompt([Message(role="user", content=hint)])
        return FinishReason.MAX_TURNS

    async def eval(self, rollout: RolloutContext) -> Verdict:
        return Verdict(1 / len(rollout.turns), report={"guesses": len(rollout.turns)})
