"""One normal form for problems of all data sets, by kind, and their tasks. Fetches nothing."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from prorl_service.agents.code.agent import CodeAgent
from prorl_service.agents.code.data import CodeData, CodeTests
from prorl_service.agents.math import MathAgent, MathData
from prorl_service.agents.reasoning_gym import ReasoningGymAgent, ReasoningGymData
from prorl_service.agents.stem import StemAgent, StemData
from prorl_service.schemas import Difficulty, Message, Picture, Task


class _Problem(BaseModel):
    """`source`: the data set that the problem comes from, with its part if it has several."""

    model_config = ConfigDict(extra="forbid")

    problem_id: str = Field(min_length=1)
    source: str
    question: str = Field(min_length=1)
    pictures: list[Picture] = Field(
        default_factory=list, exclude_if=lambda pictures: not pictures, repr=False
    )

    @property
    def asked(self) -> str:
        """Everything that the question consists of: the same question is the same text."""
        return "\n".join([self.question, *(one.data for one in self.pictures)])

    def _task(self, agent: str, data: BaseModel) -> Task:
        return Task(
            task_id=self.problem_id,
            agent=agent,
            messages=[Message(role="user", content=self.question, pictures=self.pictures)],
            data=data.model_dump(mode="json"),
        )


class MathProblem(_Problem):
    kind: Literal["math"] = "math"
    answer: str = Field(min_length=1, description="The gold answer: a number or LaTeX.")
    files: dict[str, str] = {}

    @property
    def asked(self) -> str:
        return "\n".join([super().asked, *(text for one in self.files.items() for text in one)])

    def task(self, options: Mapping[str, Any]) -> Task:
        """Returns the task for the service's `math` agent. `options`: other fields of
        `MathData`."""
        data = MathData(answer=self.answer, files=self.files, **options)
        return self._task(MathAgent.name, data)


class CodeProblem(_Problem):
    kind: Literal["code"] = "code"
    tests: CodeTests

    def task(self, options: Mapping[str, Any]) -> Task:
        """Returns the task for the service's `code` agent. `options`: other fields of
        `CodeData`."""
        return self._task(CodeAgent.name, CodeData(tests=self.tests, **options))


class StemProblem(_Problem):
    """`question` includes the options, if there are any, as the model reads them."""

    kind: Literal["stem"] = "stem"
    answer: str = Field(min_length=1, description="The letter of an option, or text or LaTeX.")
    options: dict[str, str] = {}

    def task(self, options: Mapping[str, Any]) -> Task:
        """Returns the task for the service's `stem` agent. `options`: other fields of `StemData`; a
        judge is asked about short answers only."""
        more = dict(options)
        if self.options:
            more.pop("judge", None)
        data = StemData(answer=self.answer, options=self.options, **more)
        return self._task(StemAgent.name, data)


class ReasoningProblem(_Problem):
    """A puzzle of reasoning-gym: the service makes it again, with its answer."""

    kind: Literal["reasoning_gym"] = "reasoning_gym"
    generator: str
    level: int | None = None
    seed: int
    entry: dict[str, Any] | None = None

    def task(self, options: Mapping[str, Any]) -> Task:
        """Returns the task for the service's `reasoning_gym` agent. `options`: other fields of
        `ReasoningGymData`."""
        puzzle = self.model_dump(include={"generator", "level", "seed", "entry"})
        task = self._task(ReasoningGymAgent.name, ReasoningGymData(**puzzle, **options))
        difficulty = Difficulty(kind=self.generator, level=self.level or 0)
        return task.model_copy(update={"difficulty": difficulty})


Problem: TypeAlias = MathProblem | CodeProblem | StemProblem | ReasoningProblem
PROBLEM: TypeAdapter[Problem] = TypeAdapter(Annotated[Problem, Field(discriminator="kind")])


def write_rows(path: Path, problems: Iterable[Problem]) -> None:
    path.write_text("".join(f"{problem.model_dump_json()}\n" for problem in problems))


def read_rows(path: Path) -> list[Problem]:
    """Raises pydantic's `ValidationError`."""
    # Not splitlines(): it also splits at characters that JSON does not escape.
    return [PROBLEM.validate_json(line) for line in path.read_text().split("\n") if line]
