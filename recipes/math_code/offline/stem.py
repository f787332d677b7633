"""A small set of questions, written for this repository: what continuous integration asks.

A third is about things that were made up, and which only the documents beside them tell. It says
nothing of how much a model knows.
"""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter

from recipes.math_code.offline.examples import Attempt, Example
from recipes.math_code.rows import StemProblem

DIRECTORY = Path(__file__).parent / "stem_data"
CORPUS = DIRECTORY / "corpus"
"""For `recipes.math_code.corpus_server`."""


class OfflineQuestion(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: str
    question: str
    options: dict[str, str] = {}
    answer: str
    document: str | None = None
    """The only one of the corpus that tells."""
    right: list[str] = []
    """Other ways to write a short answer, and `wrong` answers that come near it."""
    wrong: list[str] = []

    def problem(self) -> StemProblem:
        lines = [self.question, *(f"{letter}. {text}" for letter, text in self.options.items())]
        return StemProblem(
            problem_id=f"offline_stem-{self.id}",
            source=f"offline_stem/{'known' if self.document is None else 'look_up'}",
            question="\n".join(lines),
            answer=self.answer,
            options=self.options,
        )

    def example(self) -> Example:
        answers = [*self.options] or [self.answer, *self.wrong]
        attempts = [_attempt(answer) for answer in answers]
        return Example.of(self.problem(), attempts, answers.index(self.answer))


def _attempt(answer: str) -> Attempt:
    """The call finds nothing out: knowing the answer is what there is to learn."""
    return Attempt("bash", {"command": f"echo '{answer}'"}, answer, rf"\boxed{{{answer}}}")


def questions() -> list[OfflineQuestion]:
    text = (DIRECTORY / "questions.json").read_text()
    return TypeAdapter(list[OfflineQuestion]).validate_json(text)


def problems() -> list[StemProblem]:
    return [one.problem() for one in questions()]


def examples() -> list[Example]:
    return [one.example() for one in questions()]
