"""An agent for training tests that uses its shell whatever the policy says: a command in the
sandbox measures the length of the first turn; the reward is the share of letters in both turns."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from prorl_service.agents.base import AgentHandler, Prompt, Restores, RolloutContext, Verdict
from prorl_service.errors import AgentError
from prorl_service.sandbox.base import Sandbox
from prorl_service.schemas import FinishReason, Message, Task


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.1)


class ShellAgent(AgentHandler):
    """Agent controlled by `task.data`: "fault" makes all its rollouts fail, "easy" gives them all
    the same reward, "begins" is the text of the first turn without which they have none, "pause_s"
    is the shortest duration of each in seconds, "wait_for" is a file that each waits for, "sampled"
    is a file that gets a line for each turn."""

    name: ClassVar[str] = "shell"
    restores: ClassVar[Restores] = "sandbox"

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._sandbox: Sandbox | None = None

    def prompt(self) -> Prompt:
        return Prompt(self.task.messages)

    async def init(self, rollout: RolloutContext) -> None:
        if self.task.data.get("fault"):
            raise AgentError("this task always fails")
        if path := self.task.data.get("wait_for"):
            await asyncio.to_thread(wait_for, Path(str(path)))
        self._sandbox = await rollout.open_sandbox()

    async def run(self, rollout: RolloutContext) -> FinishReason:
        assert self._sandbox is not None
        prompt_ids = rollout.prompt_ids
        if not rollout.turns:
            prompt_ids = await self._first_turn(rollout, self._sandbox)
        if rollout.room(len(prompt_ids)) <= 0:
            return FinishReason.LENGTH
        last = await rollout.sample(prompt_ids)
        self._note_turn()
        return FinishReason.LENGTH if last.finish_reason == "length" else FinishReason.FINISHED

    async def _first_turn(self, rollout: RolloutContext, sandbox: Sandbox) -> Sequence[int]:
        first = await rollout.sample(rollout.prompt_ids)
        self._note_turn()
        await sandbox.upload("said", first.text.encode())
        counted = await sandbox.call_tool("bash", {"command": "wc -c < said"}, timeout_s=30)
        await asyncio.sleep(float(str(self.task.data.get("pause_s", 0))))
        prompt_ids = rollout.next_prompt([Message(role="tool", content=counted.output)])
        await rollout.turn_ended(prompt_ids)
        return prompt_ids

    def _note_turn(self) -> None:
        if path := self.task.data.get("sampled"):
            with Path(str(path)).open("a") as file:
                file.write(f"{self.task.task_id}\n")

    async def eval(self, rollout: RolloutContext) -> Verdict:
        if self.task.data.get("easy"):
            return Verdict(1.0, {"letters": 1.0})
        begins = self.task.data.get("begins")
        if begins is not None and rollout.turns[0].text != begins:
            return Verdict(0.0, {"letters": 0.0})
        text = "".join(turn.text for turn in rollout.turns)
        letters = sum(character.isascii() and character.isalpha() for character in text)
        return Verdict(letters / max(len(text), 1), {"letters": float(letters)})
