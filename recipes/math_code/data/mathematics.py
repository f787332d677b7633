"""Converters for rows of mathematical data sets. `golds` checks that math-verify can read an
answer."""

import re

from prorl_service.rewards.math import boxed
from recipes.common.data.fields import Row
from recipes.math_code.data.questions import check_asked, has_parts, named, user_message
from recipes.math_code.rows import MathProblem

_DAPO = re.compile(
    r"Solve the following math problem step by step\. The last line of your response should be of "
    r"the form Answer: \$Answer \(without quotes\) where \$Answer is the answer to the problem\."
    r"\s+(?P<question>.+?)\s+"
    r'Remember to put your answer on its own line after "Answer:"\.\s*',
    re.DOTALL,
)
_EURUS = re.compile(r"\s*Present the answer in LaTex format: \\boxed\{Your answer\}\s*$")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\{\w+\}")
_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{3,}")
MAX_WORDS = 3
_NO_ANSWER = re.compile(r"proof|prove|not (?:found|provided|available)", re.I)


def from_deepscaler(row: Row) -> MathProblem:
    """Reads `problem` and `answer`, not `solution`. Raises `RowError`, as all converters here
    do."""
    return _problem(row, "deepscaler", row.text("problem"), _answer(row, "answer"))


def from_dapo(row: Row) -> MathProblem:
    """Strips the text around the question, which asks for another form of answer and must be the
    known one."""
    match = _DAPO.fullmatch(user_message(row))
    if match is None:
        raise row.error("prompt has unknown text around its question")
    answer = _answer(row.inner("reward_model"), "ground_truth")
    return _problem(row, "dapo_math_17k", match["question"], answer)


def from_eurus_math(row: Row) -> MathProblem | None:
    """Returns None for rows of code. Drops the system message, which asks for a way of
    reasoning."""
    if row.text("ability") != "math":
        return None
    question = _EURUS.sub("", user_message(row))
    answer = _answer(row.inner("reward_model"), "ground_truth")
    return _problem(row, "eurus_math", question, answer, part=row.text("data_source"))


def from_aime24(row: Row) -> MathProblem:
    """Reads `solution`, which is the answer in a box."""
    solution = _answer(row, "solution")
    return _problem(row, "aime24", row.text("problem"), boxed(solution) or solution)


def from_aime25(row: Row) -> MathProblem:
    return _problem(row, "aime25", row.text("problem"), _answer(row, "answer"))


def from_amc23(row: Row) -> MathProblem:
    return _problem(row, "amc23", row.text("question"), _answer(row, "answer"))


def _problem(row: Row, data_set: str, question: str, answer: str, part: str = "") -> MathProblem:
    check_asked(row, question)
    if _NO_ANSWER.match(re.sub(r"\\text\{(.*?)\}", r"\1", answer)):
        raise row.error("the answer stands for a proof or for no answer", answer[:80])
    if has_parts(answer):
        raise row.error("the answer has several parts", answer[:80])
    if len(_WORD.findall(_ENVIRONMENT.sub("", answer))) > MAX_WORDS:
        raise row.error("the answer is a sentence", answer[:80])
    return MathProblem(
        problem_id=named(data_set, question),
        source=f"{data_set}/{part}" if part else data_set,
        question=question.strip(),
        answer=answer,
    )


def _answer(row: Row, field: str) -> str:
    """Reads text or a number; `27.0` becomes 27."""
    value = row.fields.get(field)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return row.text(field).strip()
