"""Made-up rows with the fields and forms of the published data sets."""

import base64
import json
import pickle
import zlib
from typing import Any

Fields = dict[str, Any]

DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of"
    " the form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
    '{}\n\nRemember to put your answer on its own line after "Answer:".'
)
EURUS_MATH = "{}\n\nPresent the answer in LaTex format: \\boxed{{Your answer}}"
EURUS_CODE = (
    "{}\n\nWrite Python code to solve the problem. Present the code in \n"
    "```python\nYour code\n```\nat the end."
)


def deepscaler(problem: str = "Add 2 and 3.", answer: Any = "5") -> Fields:
    return {"problem": problem, "answer": answer, "solution": "By counting."}


def dapo(question: str = "Find $6 \\cdot 7$.", answer: str = "42", prompt: str = DAPO) -> Fields:
    return {
        "data_source": "math_dapo",
        "prompt": [{"content": prompt.format(question), "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": "9a9b6eb4"},
    }


def eurus(ability: str, source: str, prompt: str, truth: str) -> Fields:
    system = {"content": "\nWhen tackling complex reasoning tasks ...", "role": "system"}
    return {
        "data_source": source,
        "prompt": [system, {"content": prompt, "role": "user"}],
        "ability": ability,
        "reward_model": {"ground_truth": truth, "style": "rule"},
        "extra_info": {"index": 0, "split": "dummy"},
    }


def eurus_math(question: str = "Halve $x$.", answer: str = "\\frac{x}{2}") -> Fields:
    return eurus("math", "numina_olympiads", EURUS_MATH.format(question), answer)


def eurus_code(question: str = "Print the sum.", tests: Any = None) -> Fields:
    tests = tests or {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]}
    return eurus("code", "taco", EURUS_CODE.format(question), json.dumps(tests))


def scp(solution: str, problem: str = "How far is it?", **changed: Any) -> Fields:
    row: Fields = {
        "domain": "Physics",
        "problem": problem,
        "matched_solution": solution,
        "qwq_solution": "We find \\boxed{4}, no: \\boxed{3 \\text{ m}}.",
        "is_qwq_solution_same_with_matched_solution": False,
        "o1_solution": "It is far.",
        "is_o1_solution_same_with_matched_solution": True,
    }
    return {**row, **changed}


def aime24(problem: str = "Find $m+n$.", solution: str = "\\boxed{204}") -> Fields:
    return {"id": 60, "problem": problem, "solution": solution, "url": "https://example.org/"}


def aime25(problem: str = "Find $m+n$.", answer: str = "70") -> Fields:
    return {"problem": problem, "answer": answer, "id": "0"}


def amc23(question: str = "How many miles?", answer: Any = 27.0) -> Fields:
    return {"id": 0, "question": question, "answer": answer, "url": "https://example.org/"}


def packed(value: object) -> str:
    """Packs a value as LiveCodeBench packs its private tests."""
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


def cases(testtype: str, *pairs: tuple[str, str]) -> str:
    return json.dumps([{"input": a, "output": b, "testtype": testtype} for a, b in pairs])


def livecodebench(**changed: Any) -> Fields:
    row: Fields = {
        "question_title": "Sum",
        "question_content": "Print the sum.",
        "platform": "atcoder",
        "question_id": "abc387_f",
        "contest_id": "abc387",
        "contest_date": "2025-01-04T00:00:00",
        "starter_code": "",
        "difficulty": "hard",
        "public_test_cases": cases("stdin", ("1 2\n", "3\n")),
        "private_test_cases": packed(cases("stdin", ("3 4\n", "7\n"), ("0 0\n", "0\n"))),
        "metadata": "{}",
    }
    return {**row, **changed}


def functional(**changed: Any) -> Fields:
    starter = "class Solution:\n    def add(self, a: int, b: List[int]) -> int:\n        "
    row = livecodebench(
        platform="leetcode",
        question_id="3550",
        starter_code=starter,
        public_test_cases=cases("functional", ("1\n[2, 3]", "6")),
        private_test_cases=packed(cases("functional", ("0\n[]\n", "0 "))),
        metadata='{"func_name": "add"}',
    )
    return {**row, **changed}
