"""The agent for puzzles of reasoning-gym: as `math`, but the library's verifier scores the answer.

The model answers from thought alone, or computes in a sandbox where the task offers tools. The
puzzle is made again before anything is sampled, so that a task that another version of the library
made fails, instead of being scored by another puzzle.
"""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import BaseModel, Field

from prorl_service.agents.answers import AnswerAgent, AnswerFormat, score_answer
from prorl_service.agents.base import RolloutContext, Verdict
from prorl_service.errors import EvaluatorError, InvalidRequest, TaskError
from prorl_service.rewards.pool import ScoringAborted
from prorl_service.rewards.reasoning import (
    EXTRA,
    MODULE,
    REFUSED,
    UNSOUND,
    Puzzle,
    check_puzzle,
    score_puzzle,
)
from prorl_service.schemas import Task
from prorl_service.tools.registry import ToolNames

SYSTEM_PROMPT = """\
Solve the user's problem. Reason step by step{tools}. Put your final answer in \\boxed{{}}: the \
answer alone, once, exactly in the form that the problem asks for.\
"""
WITH_TOOLS = """\
 and use the tools for what is better computed than thought. Give your final answer without a tool \
call\
"""


class ReasoningGymData(Puzzle):
    """`task.data` of this agent."""

    answer_format: AnswerFormat = "boxed"
    tools: ToolNames = Field([])
    partial_credit: bool = Field(
        False, description="Reward the library's score; otherwise only a right answer counts."
    )

    def puzzle(self) -> Puzzle:
        return Puzzle.model_validate(self.model_dump(include=set(Puzzle.model_fields)))


class ReasoningGymAgent(AnswerAgent):
    name: ClassVar[str] = "reasoning_gym"
    data_model: ClassVar[type[BaseModel] | None] = ReasoningGymData
    refused: ClassVar[Mapping[str, str]] = REFUSED
    """Generators that are not run, and why."""

    def __init__(self, task: Task) -> None:
        self.data = ReasoningGymData.model_validate(task.data)
        super().__init__(task, self.data.answer_format, self.data.tools)
        if reason := self.refused.get(self.data.generator):
            raise InvalidRequest(
                f"data.generator: {self.data.generator!r} is refused: {reason}",
                hint="take another; docs/math_code_science.md lists those that are refused",
            )
        self.uses = self.uses.also({MODULE: EXTRA})
        self._puzzle = self.data.puzzle().model_dump_json(exclude_none=True)

    def system_prompt(self) -> str:
        return SYSTEM_PROMPT.format(tools=WITH_TOOLS if self.tools else "")

    async def init(self, rollout: RolloutContext) -> None:
        await self._check(rollout)
        await super().init(rollout)

    async def _check(self, rollout: RolloutContext) -> None:
        """Raises `TaskError` if the library does not make this puzzle."""
        question = "\n".join(message.content for message in self.task.messages)
        where = f"generator {self.data.generator!r}, seed {self.data.seed}"
        try:
            await rollout.score(check_puzzle, self._puzzle, question)
        except ScoringAborted as error:
            raise TaskError(f"{where}: the puzzle cannot be made in time: {error}") from error
        except EvaluatorError as error:
            if error.retryable:
                raise
            raise TaskError(f"{where}: {error.__cause__ or error}") from error

    async def eval(self, rollout: RolloutContext) -> Verdict:
        answer = self.answer(rollout)
        score, aborted = 0.0, False
        if answer is not None:
            score, aborted = await score_answer(rollout, score_puzzle, answer, self._puzzle)
        correct = float(score == 1.0)
        return Verdict(
            score if self.data.partial_credit else correct,
            {
                "correct": correct,
                "score": score,
                "answered": float(answer is not None),
                "scoring_failed": float(aborted),
            },
        )


class EvaluatingReasoningGymAgent(ReasoningGymAgent):
    """Also runs puzzles whose verifiers evaluate the answer, for operators who trust their policy:
    `prorl serve --agent prorl_service.agents.reasoning_gym:EvaluatingReasoningGymAgent`. The
    answers that are evaluated consist of literals, or of arithmetic, alone."""

    name: ClassVar[str] = "reasoning_gym_evaluating"
    refused: ClassVar[Mapping[str, str]] = UNSOUND
