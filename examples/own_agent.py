"""An agent of your own, without tools: the model guesses a number and gets "higher" or "lower".

prorl try examples/own_agent.py:Guess --engine http://localhost:8000 --task '{
    "messages": [{"role": "user", "content": "Guess from 1 to 100."}],
    "data": {"secret": 60}}'
prorl serve --agent examples.own_agent:Guess --backend http://localhost:8000
"""

from typing import ClassVar

from pydantic import BaseModel, Field

from prorl_service.agents.base import AgentHandler, Prompt, RolloutContext, Verdict
from prorl_service.schemas import FinishReason, Message, Stage, Task


class GuessData(BaseModel):
    """The `data` of a task. Wrong data is refused when the task is submitted."""

    secret: int = Field(ge=1, le=100)


class Guess(AgentHandler):
    name: ClassVar[str] = "guess"
    sandbox_stages: ClassVar[frozenset[Stage]] = frozenset()  # it opens no sandbox
    data_model: ClassVar[type[BaseModel] | None] = GuessData

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.secret = GuessData.model_validate(task.data).secret
        self.is_found = False

    def prompt(self) -> Prompt:
        return Prompt(self.task.messages)

    async def init(self, rollout: RolloutContext) -> None:
        """Nothing to prepare."""

    async def run(self, rollout: RolloutContext) -> FinishReason:
        prompt_ids = rollout.prompt_ids
        for _ in range(rollout.limits.max_turns):
            turn = await rollout.sample(prompt_ids)
            hint = self._hint(rollout.reply(turn).content)
            if self.is_found:
                return FinishReason.FINISHED
            prompt_ids = rollout.next_prompt([Message(role="user", content=hint)])
        return FinishReason.MAX_TURNS

    def _hint(self, reply: str) -> str:
        if not reply.strip().isdecimal():
            return "Reply with a number alone."
        guess = int(reply)
        self.is_found = guess == self.secret
        return "higher" if guess < self.secret else "lower"

    async def eval(self, rollout: RolloutContext) -> Verdict:
        guesses = len(rollout.turns)
        return Verdict(self.is_found / guesses, {"guesses": float(guesses)})
