"""A small set of questions written for this repository, for continuous integration.

A third is about invented things that only the documents next to them describe. A score on the set
says nothing about a model's knowledge.
"""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter

from recipes.math_code.offline.examples import Attempt, Example
from recipes.math_code.rows import StemProblem

DIRECTORY = Path(__file__).parent / "stem_data"
CORPUS = DIRECTORY / "corpus"
"""Documents for `recipes.math_code.corpus_server`."""


class OfflineQuestion(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: str
    question: str
    options: dict[str, str] = {}
    answer: str
    document: str | None = None
    """The only document of the corpus that has the answer."""
    right: list[str] = []
    """Other ways to write a short answer; `wrong`: answers that come near it."""
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
    """Makes an attempt whose call finds nothing out: a policy has to learn the answer itself."""
    return Attempt("bash", {"command": f"echo '{answer}'"}, answer, rf"\boxed{{{answer}}}")


def questions() -> list[OfflineQuestion]:
    text = (DIRECTORY / "questions.json").read_text()
    return TypeAdapter(list[OfflineQuestion]).validate_json(text)


def problems() -> list[StemProblem]:
    return [one.problem() for one in questions()]


def examples() -> list[Example]:
    return [one.example() for one in questions()]
