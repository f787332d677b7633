"""Agents for training tests: turns of free text, rewarded by the share of letters in it."""

import asyncio
from typing import ClassVar

from prorl_service.agents.base import AgentHandler, Prompt, RolloutContext, Verdict
from prorl_service.errors import AgentError, SandboxError
from prorl_service.schemas import FinishReason, Message


class LettersAgent(AgentHandler):
    """Agent of two turns.

    `task.data["fault"]`: what goes wrong in INIT, or "easy" for a task that teaches nothing.
    """

    name: ClassVar[str] = "letters"

    def prompt(self) -> Prompt:
        return Prompt(self.task.messages)

    async def init(self, rollout: RolloutContext) -> None:
        match self.task.data.get("fault"):
            case "agent":
                raise AgentError("this agent always fails", hint="take another agent")
            case "sandbox":
                raise SandboxError("no sandbox today")
            case "hang":
                await asyncio.Event().wait()

    async def run(self, rollout: RolloutContext) -> FinishReason:
        await rollout.sample(rollout.prompt_ids)
        prompt_ids = rollout.next_prompt([Message(role="tool", content="go on")])
        if rollout.room(len(prompt_ids)) <= 0:
            return FinishReason.LENGTH
        last = await rollout.sample(prompt_ids)
        return FinishReason.LENGTH if last.finish_reason == "length" else FinishReason.FINISHED

    async def eval(self, rollout: RolloutContext) -> Verdict:
        if self.task.data.get("fault") == "easy":
            return Verdict(1.0)
        text = "".join(turn.text for turn in rollout.turns)
        letters = sum(character.isascii() and character.isalpha() for character in text)
        return Verdict(letters / max(len(text), 1), {"letters": float(letters)})


class ForgetfulAgent(LettersAgent):
    """Agent with a third turn, whose prompt has a summary instead of the first two turns."""

    name: ClassVar[str] = "forgetful"

    async def run(self, rollout: RolloutContext) -> FinishReason:
        await super().run(rollout)
        summary = Message(role="user", content=f"{len(rollout.turns)} turns so far")
        last = await rollout.sample(rollout.chat.prompt_ids([*self.task.messages, summary]))
        return FinishReason.LENGTH if last.finish_reason == "length" else FinishReason.FINISHED
