"""Tasks of a recipe for a harness: the recipe's own agent grades."""

import pytest

from prorl_service.agents.registry import AgentRegistry
from prorl_service.schemas import Message, Task
from recipes.common.data import rows
from recipes.common.evaluation.scorecard import harness_of
from recipes.common.settings import BadSettings, Evaluation
from tests.recipes.composed_settings import settings

HARNESS = ("swebench_evaluate", "model=tiny", "agent=swe_harness")
MATH = Task(
    task_id="t",
    agent="math",
    messages=[Message(role="user", content="What is 6 * 7?")],
    data={"answer": "42"},
)


@pytest.mark.parametrize(
    ("harness", "run"), [("pi_messages", "pi_messages@1.6.0"), ("pi@0.73.1", "pi@0.73.1")]
)
def test_tasks_are_wrapped_for_a_harness_with_its_version(harness: str, run: str) -> None:
    found = settings(Evaluation, *HARNESS, f"harness={harness}")
    [task] = rows.tasks(found, [MATH], lambda row, options: row)
    assert (task.agent, task.data["agent"], task.data["data"]) == ("harness", "math", MATH.data)
    AgentRegistry().make(task)
    assert harness_of(found) == run


def test_an_unknown_harness_is_one_line() -> None:
    found = settings(Evaluation, *HARNESS, "harness=nope")
    with pytest.raises(BadSettings, match="there is no harness 'nope'"):
        rows.tasks(found, [MATH], lambda row, options: row)
