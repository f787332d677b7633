"""Converters for rows of data sets with programming problems and tests."""

import json
import re
from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter, ValidationError

from prorl_service.agents.code.data import CodeTests
from recipes.common.data.fields import Row, of_validation
from recipes.math_code.data.private_tests import decoded
from recipes.math_code.data.questions import named, user_message
from recipes.math_code.rows import CodeProblem

_EURUS = re.compile(
    r"\s*Write Python code to solve the problem\. Present the code in\s+```python\s+Your code\s+"
    r"```\s*at the end\.\s*$"
)


class _Case(BaseModel):
    """Case of LiveCodeBench. For a function, input and output are JSON, one argument per line."""

    input: str
    output: str
    testtype: Literal["stdin", "functional"]


_CASES = TypeAdapter(list[_Case])


def from_eurus_code(row: Row) -> CodeProblem | None:
    """Returns None for rows of mathematics. The tests are JSON text. Raises `RowError`."""
    if row.text("ability") != "code":
        return None
    truth = row.inner("reward_model").inner("ground_truth").fields
    tests = _tests(row, truth.get("inputs"), truth.get("outputs"), truth.get("fn_name"))
    question = _EURUS.sub("", user_message(row)).strip()
    return CodeProblem(
        problem_id=named("eurus_code", question),
        source=f"eurus_code/{row.text('data_source')}",
        question=question,
        tests=tests,
    )


def from_livecodebench(row: Row) -> CodeProblem:
    """Makes all tests, public and private, hidden ones. Raises `RowError`."""
    cases = _cases(row, row.json("public_test_cases")) + _private_cases(row)
    kinds = {case.testtype for case in cases}
    if len(kinds) != 1:
        raise row.error("its tests are not of one type", ", ".join(sorted(kinds)))
    question, name = row.text("question_content").strip(), None
    if kinds == {"functional"}:
        name = row.inner("metadata").text("func_name")
        starter = row.text("starter_code").rstrip()
        question += f"\n\nBegin with this code:\n\n```python\n{starter}\n```"
        cases = [_stripped(case) for case in cases]
    tests = _tests(row, [case.input for case in cases], [case.output for case in cases], name)
    return CodeProblem(
        problem_id=f"livecodebench-{row.text('question_id')}",
        source=f"livecodebench/{row.text('platform')}",
        question=question,
        tests=tests,
    )


def _tests(row: Row, inputs: Any, outputs: Any, name: Any) -> CodeTests:
    if not inputs:
        raise row.error("there are no tests")
    try:
        json.dumps(outputs, allow_nan=False)
        return CodeTests(inputs=inputs, outputs=outputs, fn_name=name or None)
    except ValidationError as error:
        raise row.error(*of_validation(error, "the set of tests")) from error
    except ValueError as error:  # it would be written as null
        raise row.error("an expected output is not a finite number") from error


def _cases(row: Row, cases: Any) -> list[_Case]:
    try:
        return _CASES.validate_python(cases)
    except ValidationError as error:
        raise row.error(*of_validation(error, "the list of tests")) from error


def _private_cases(row: Row) -> list[_Case]:
    packed = row.text("private_test_cases")
    try:
        cases = decoded(packed)
    except (ValueError, RecursionError) as error:
        raise row.error("private_test_cases cannot be decoded", str(error)) from error
    return _cases(row, cases)


def _stripped(case: _Case) -> _Case:
    return case.model_copy(update={"input": case.input.strip(), "output": case.output.strip()})
