"""The agent for open questions: the operator's judges grade the last reply by the task's rubric.

Most such questions need no tools; the model may have some. A rollout that stops without an answer
(turns or tokens used up) meets no criterion.
"""

from dataclasses import replace
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from prorl_service.agents.answers import AnswerAgent
from prorl_service.agents.base import RolloutContext, Verdict
from prorl_service.rewards.judge.rubric import ANSWERED, Met, Rubric, reward_of, scores_of
from prorl_service.schemas import Task
from prorl_service.tools.registry import ToolNames


class RubricData(BaseModel):
    """`task.data` of this agent."""

    model_config = ConfigDict(extra="forbid")

    rubric: Rubric
    reference: str = Field(
        "", description="A good answer, or facts, which the judges see and the model does not."
    )
    tools: ToolNames = []
    mcp: list[str] = Field([], description="Names of MCP servers whose tools are offered.")


class RubricAgent(AnswerAgent):
    name: ClassVar[str] = "rubric"
    data_model: ClassVar[type[BaseModel] | None] = RubricData

    def __init__(self, task: Task) -> None:
        self.data = RubricData.model_validate(task.data)
        super().__init__(task, "plain", self.data.tools)
        self.uses = replace(self.uses, mcp=self.data.mcp, judge=True)

    async def eval(self, rollout: RolloutContext) -> Verdict:
        answer, criteria = self.answer(rollout), self.data.rubric
        verdicts: dict[str, Met] = {}
        if answer:
            assert rollout.services.judge is not None  # checked at submission
            verdicts = await rollout.services.judge.grade(
                criteria,
                question=self.question(),
                answer=answer,
                reference=self.data.reference,
            )
        scores = scores_of(verdicts.values()) or [0.0] * len(criteria)
        by_name = {one.name: score for one, score in zip(criteria, scores, strict=True)}
        return Verdict(
            reward_of(criteria, scores),
            {**by_name, ANSWERED: float(bool(answer))},
            {"judges": {model: list(met) for model, met in verdicts.items()}},
        )
