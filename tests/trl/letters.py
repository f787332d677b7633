"""Agents for training tests: turns of free text, rewarded by the share of letters in it."""

import asyncio
from pathlib import Path
from typing import ClassVar

from prorl_service.agents.base import AgentHandler, Prompt, Restores, RolloutContext, Verdict
from prorl_service.errors import AgentError, SandboxError
from prorl_service.schemas import FinishReason, Message

BEGUN = "begun"


class LettersAgent(AgentHandler):
    """Agent of two turns.

    `task.data["fault"]`: what goes wrong in INIT, or "easy" for a task that teaches nothing, or the
    path of a file that gets a line for each turn, of which the first then takes half a second.
    """

    name: ClassVar[str] = "letters"
    restores: ClassVar[Restores] = "conversation"

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
        prompt_ids = rollout.prompt_ids
        if not rollout.turns:
            await rollout.sample(prompt_ids)
            if self._note_turn():
                await asyncio.sleep(0.5)
            prompt_ids = rollout.next_prompt([Message(role="tool", content="go on")])
            await rollout.turn_ended(prompt_ids)
        if rollout.room(len(prompt_ids)) <= 0:
            return FinishReason.LENGTH
        last = await rollout.sample(prompt_ids)
        self._note_turn()
        return FinishReason.LENGTH if last.finish_reason == "length" else FinishReason.FINISHED

    def _note_turn(self) -> bool:
        path = str(self.task.data.get("fault"))
        if not path.startswith("/"):
            return False
        with Path(path).open("a") as file:
            file.write(f"{self.task.task_id}\n")
        return True

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
        last = await rollout.sample(rollout.attempt.chat.prompt_ids([*self.task.messages, summary]))
        return FinishReason.LENGTH if last.finish_reason == "length" else FinishReason.FINISHED


class HastyAgent(LettersAgent):
    """Agent that has finished, it says, after whatever turn was its last."""

    name: ClassVar[str] = "hasty"

    async def run(self, rollout: RolloutContext) -> FinishReason:
        await super().run(rollout)
        return FinishReason.FINISHED


class BegunAgent(LettersAgent):
    """Agent that fails unless its first turn is the word that no policy says by itself."""

    name: ClassVar[str] = "begun"

    async def eval(self, rollout: RolloutContext) -> Verdict:
        has_begun = rollout.turns[0].text == BEGUN
        return await super().eval(rollout) if has_begun else Verdict(0.0, {"letters": 0.0})
