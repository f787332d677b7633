"""The rows of docs/math_code_science.md on rubrics: what they show is taken as it is."""

import json
import re
from pathlib import Path

from prorl_service.agents.rubric import RubricAgent
from prorl_service.cli.judge import LabelledAnswer
from prorl_service.schemas import Task

PAGE = Path(__file__).parents[2] / "docs" / "math_code_science.md"


def blocks() -> list[str]:
    marked = r"<!-- tested: tests/docs/test_rubric_example.py -->\n```json\n(.*?)```"
    return re.findall(marked, PAGE.read_text(), re.DOTALL)


def test_the_rows_of_the_page_are_a_task_and_a_labelled_answer() -> None:
    task, labelled = map(json.loads, blocks())
    agent = RubricAgent(Task.model_validate(task))
    assert [one.name for one in agent.data.rubric] == ["moon", "criterion_2", "criterion_3"]
    assert agent.question() == task["messages"][0]["content"]
    assert LabelledAnswer.model_validate(labelled).labels == [True, False]
