"""Conversion of rows: each data set's published form becomes problems or is refused."""

import base64
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest

from prorl_service.agents.code.agent import CodeAgent
from prorl_service.agents.code.data import CodeTests
from prorl_service.agents.math import MathAgent
from prorl_service.agents.registry import AgentRegistry
from prorl_service.rewards.code.grade import Case
from recipes.common.data.fields import Row, RowError
from recipes.math_code.data.catalogue import DATA_SETS, convert
from recipes.math_code.rows import CodeProblem, MathProblem, Problem, StemProblem
from tests.recipes.math_code import published_problems as published
from tests.recipes.math_code.published_problems import Fields

GOOD: list[tuple[str, Fields]] = [
    ("deepscaler", published.deepscaler()),
    ("dapo_math_17k", published.dapo()),
    ("eurus_math", published.eurus_math()),
    ("eurus_code", published.eurus_code()),
    ("scp_116k", published.scp("It is \\boxed{3 m}.")),
    ("aime24", published.aime24()),
    ("aime25", published.aime25()),
    ("amc23", published.amc23()),
    ("livecodebench", published.livecodebench()),
    ("livecodebench", published.functional()),
]


def converted(data_set: str, fields: Fields) -> Problem:
    problem = convert(DATA_SETS[data_set], Row(fields, "row 1"))
    assert problem is not None
    return problem


def mathematics(data_set: str, fields: Fields) -> MathProblem:
    problem = converted(data_set, fields)
    assert isinstance(problem, MathProblem)
    return problem


def hidden_tests(data_set: str, fields: Fields) -> CodeTests:
    problem = converted(data_set, fields)
    assert isinstance(problem, CodeProblem)
    return problem.tests


def answer(fields: Fields) -> str:
    problem = converted("scp_116k", fields)
    assert isinstance(problem, StemProblem)
    return problem.answer


@pytest.mark.parametrize(("data_set", "fields"), GOOD)
def test_the_services_agents_accept_converted_problems(data_set: str, fields: Fields) -> None:
    problem = converted(data_set, fields)
    task = problem.task({})
    agent = AgentRegistry()[task.agent](task)
    assert agent.prompt().messages[-1].content == problem.question
    assert problem.problem_id.startswith(f"{data_set}-")
    assert problem.source.startswith(data_set)


def test_every_data_set_has_a_row_here() -> None:
    generated = {"reasoning_gym"}  # has no published rows
    assert {name for name, _ in GOOD} == set(DATA_SETS) - generated


def test_text_around_a_question_is_removed() -> None:
    dapo = mathematics("dapo_math_17k", published.dapo("Two\n\nparagraphs."))
    assert (dapo.question, dapo.answer) == ("Two\n\nparagraphs.", "42")
    assert MathAgent(dapo.task({})).prompt().messages[0].role == "system"
    eurus = mathematics("eurus_math", published.eurus_math())
    assert (eurus.question, eurus.source) == ("Halve $x$.", "eurus_math/numina_olympiads")
    assert converted("eurus_code", published.eurus_code()).question == "Print the sum."
    without = published.eurus("math", "numina_amc", "As it is.", "1")
    assert mathematics("eurus_math", without).question == "As it is."


def test_messages_may_be_json_text() -> None:
    row = published.dapo()
    row["prompt"] = json.dumps(row["prompt"])
    assert mathematics("dapo_math_17k", row).question == "Find $6 \\cdot 7$."


def test_answers_from_test_sets_are_plain() -> None:
    assert mathematics("aime24", published.aime24()).answer == "204"
    assert mathematics("aime24", published.aime24(solution="33")).answer == "33"
    assert mathematics("aime25", published.aime25()).answer == "70"
    assert mathematics("amc23", published.amc23()).answer == "27"
    assert mathematics("amc23", published.amc23(answer="3.5")).answer == "3.5"


def test_an_id_depends_on_the_question_not_on_its_position() -> None:
    one = mathematics("deepscaler", published.deepscaler("Add  2\nand 3. "))
    assert one.problem_id == mathematics("deepscaler", published.deepscaler()).problem_id
    assert one.question == "Add  2\nand 3."


def test_a_short_science_answer_comes_from_a_box_or_an_agreed_solution() -> None:
    assert answer(published.scp("So it is \\boxed{3.2 \\text{ m}}.")) == "3.2 \\text{ m}"
    agreed: Fields = {"is_qwq_solution_same_with_matched_solution": True}
    assert answer(published.scp("It is 3 m.", **agreed)) == "3 \\text{ m}"
    assert answer(published.scp("It is \\boxed{5}.", **agreed)) == "5"
    with pytest.raises(RowError, match="no solution has its answer in a box"):
        answer(published.scp("It is 3 m."))  # qwq's is marked as different, o1's has no box


def test_eurus_programs_read_input_or_are_called() -> None:
    assert hidden_tests("eurus_code", published.eurus_code()).cases[0] == Case("1 2\n", "3\n")
    called = {"fn_name": "flips", "inputs": [["01"], ["11"]], "outputs": [[0], [1]]}
    tests = hidden_tests("eurus_code", published.eurus_code(tests=called))
    assert tests.fn_name == "flips"
    assert tests.cases[1] == Case('["11"]', [1], is_call=True)


def test_all_tests_of_livecodebench_become_hidden_tests() -> None:
    tests = hidden_tests("livecodebench", published.livecodebench())
    assert [case.expected for case in tests.cases] == ["3\n", "7\n", "0\n"]
    plain = published.cases("stdin", ("5", "6"))
    row = published.livecodebench(private_test_cases=plain)
    assert [case.expected for case in hidden_tests("livecodebench", row).cases] == ["3\n", "6"]


def test_livecodebench_functions_come_with_their_starter_code() -> None:
    problem = converted("livecodebench", published.functional())
    assert isinstance(problem, CodeProblem)
    assert problem.tests.fn_name == "add"
    assert problem.tests.cases == [
        Case("[1, [2, 3]]", 6, is_call=True),
        Case("[0, []]", 0, is_call=True),
    ]
    assert problem.question.startswith("Print the sum.\n\n")
    assert "    def add(self, a: int, b: List[int]) -> int:\n```" in problem.question
    assert "`add`" in CodeAgent(problem.task({})).prompt().messages[0].content


class Hostile:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_pickle_is_never_run(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    packed = published.packed(Hostile(trap))
    with pytest.raises(RowError, match="it is a pickle of more than text: STACK_GLOBAL"):
        converted("livecodebench", published.livecodebench(private_test_cases=packed))
    assert not trap.exists()
    pickle.loads(zlib.decompress(base64.b64decode(packed)))
    assert trap.exists()


LCB = published.livecodebench
PACKED = published.packed(published.cases("stdin", ("1", "2")))
BAD: list[tuple[str, Fields, str]] = [
    ("deepscaler", published.deepscaler(" "), "problem is missing or not text"),
    ("deepscaler", published.deepscaler(answer=""), "answer is missing or not text"),
    (
        "deepscaler",
        published.deepscaler(answer=True),
        "answer is missing or not text: it is 'True'",
    ),
    ("deepscaler", published.deepscaler("Prove that 1 < 2."), "it asks for a proof or a text"),
    ("deepscaler", published.deepscaler(answer="\\text{Proof}"), "the answer stands for a proof"),
    ("deepscaler", published.deepscaler(answer="not found"), "the answer stands for a proof"),
    (
        "deepscaler",
        published.deepscaler(answer="\\text{The sum of the first } n"),
        "the answer is a sentence",
    ),
    ("deepscaler", published.deepscaler(answer="(1) 3; (2) 4"), "the answer has several parts"),
    ("dapo_math_17k", published.dapo(prompt="{}"), "prompt has unknown text around its question"),
    ("dapo_math_17k", published.dapo(""), "the problem is invalid: question"),
    ("dapo_math_17k", {**published.dapo(), "prompt": []}, "prompt has no user message"),
    ("dapo_math_17k", {**published.dapo(), "prompt": "{}"}, "prompt has no user message"),
    ("dapo_math_17k", {**published.dapo(), "reward_model": {}}, "ground_truth is missing"),
    ("eurus_math", published.eurus_math(""), "the problem is invalid: question"),
    ("eurus_math", {**published.eurus_math(), "ability": None}, "ability is missing"),
    ("eurus_code", published.eurus_code(tests={"inputs": [], "outputs": []}), "there are no tests"),
    (
        "eurus_code",
        published.eurus_code(tests={"inputs": ["1"], "outputs": []}),
        "the set of tests is invalid: : Value error, 1 inputs, but 0 outputs",
    ),
    (
        "eurus_code",
        published.eurus("code", "apps", "Print.", "no JSON"),
        "ground_truth is not JSON",
    ),
    (
        "eurus_code",
        published.eurus_code(
            tests={"fn_name": "f", "inputs": [[1], [2]], "outputs": [1, float("inf")]}
        ),
        "an expected output is not a finite number",
    ),
    (
        "eurus_code",
        published.eurus("code", "apps", "Print.", '{"inputs": ["1"], "outputs": [1' + "0" * 5000),
        "ground_truth is not JSON: Exceeds the limit",
    ),
    ("eurus_code", published.eurus("code", "apps", "Print.", "[" * 10**5), "ground_truth is no"),
    (
        "eurus_code",
        published.eurus_code(tests={"inputs": ["1"], "outputs": ["\ud800"]}),
        "the problem is invalid: data: Value error, holds a lone surrogate",
    ),
    ("scp_116k", published.scp("\\boxed{1} and \\boxed{2}"), "the solution has several boxes"),
    ("scp_116k", published.scp("\\boxed{" + "a" * 201 + "}"), "the answer is not short"),
    ("scp_116k", published.scp("\\boxed{1}", "(a) Find x. (b) Find y."), "the problem has parts"),
    ("scp_116k", published.scp("\\boxed{1}", "Explain why."), "it asks for a proof or a text"),
    ("scp_116k", published.scp(""), "matched_solution is missing or not text"),
    ("livecodebench", LCB(private_test_cases=""), "row 1: private_test_cases is missing"),
    (
        "livecodebench",
        LCB(private_test_cases=published.packed("[{}]")),
        "the list of tests is invalid",
    ),
    ("livecodebench", LCB(private_test_cases="%"), "private_test_cases cannot be decoded"),
    ("livecodebench", LCB(private_test_cases=PACKED[:-8]), "private_test_cases cannot be decoded"),
    (
        "livecodebench",
        LCB(private_test_cases=published.packed(["1"])),
        "it is a pickle of more than text: EMPTY_LIST",
    ),
    ("livecodebench", LCB(private_test_cases=published.packed("{")), "cannot be decoded"),
    ("livecodebench", LCB(public_test_cases='[{"input": "1"}]'), "the list of tests is invalid"),
    (
        "livecodebench",
        LCB(public_test_cases=published.cases("functional", ("1", "2"))),
        "its tests are not of one type: functional, stdin",
    ),
    ("livecodebench", published.functional(metadata="{}"), "func_name is missing"),
    (
        "livecodebench",
        published.functional(public_test_cases=published.cases("functional", ("x", "1"))),
        "test 0 cannot be read",
    ),
]


@pytest.mark.parametrize(("data_set", "fields", "message"), BAD)
def test_an_unusable_row_is_refused_with_the_reason(
    data_set: str, fields: Fields, message: str
) -> None:
    with pytest.raises(RowError) as error:
        converted(data_set, fields)
    assert str(error.value).startswith("row 1")
    assert message in str(error.value)
