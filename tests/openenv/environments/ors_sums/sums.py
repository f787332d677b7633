"""An environment of the Open Reward Standard, which `openenv import` serves. Runs in
`.venv-openenv`."""

from typing import Any

from openreward.environments import Environment, TextBlock, ToolOutput, tool
from pydantic import BaseModel

TASKS = [{"a": a, "b": a + 1, "sum": 2 * a + 1} for a in range(1, 7)]


class Answer(BaseModel):
    number: int


class Sums(Environment):
    @classmethod
    def list_splits(cls) -> list[str]:
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        return TASKS

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=f"What is {self.task_spec['a']} + {self.task_spec['b']}?")]

    @tool
    def answer(self, given: Answer) -> ToolOutput:
        """Give your answer. The third is the last."""
        self.tries = getattr(self, "tries", 0) + 1
        is_right = given.number == self.task_spec["sum"]
        return ToolOutput(
            blocks=[TextBlock(text="right" if is_right else f"{given.number} is wrong")],
            reward=1.0 if is_right else 0.0,
            finished=is_right or self.tries == 3,
        )
