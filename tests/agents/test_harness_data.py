"""The data of harness tasks, checked at submission."""

from typing import Any

import pytest
from pydantic import ValidationError

from prorl_service.agents.registry import AgentRegistry
from prorl_service.client.harness import with_harness, with_program
from prorl_service.errors import InvalidRequest, problems_of
from prorl_service.schemas import Message, Task

MATH = Task(
    task_id="t",
    agent="math",
    messages=[Message(role="user", content="What is 6 * 7?")],
    data={"answer": "42"},
)


@pytest.mark.parametrize(("agent", "box"), [("math", "\\boxed{}"), ("stem", "\\boxed{3.2")])
def test_the_program_gets_the_graders_brief(agent: str, box: str) -> None:
    task = MATH.model_copy(update={"agent": agent})
    handler = AgentRegistry().make(with_harness(task, "pi"))
    [message] = handler.prompt().messages
    assert message.role == "user"
    assert box in message.content
    assert message.content.endswith("What is 6 * 7?")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"harness": "nope"}, "there is no harness 'nope'"),
        ({}, "give `harness`, the name of a preset, or a `command`"),
        ({"command": ["sh"], "version": "1"}, "`version` is that of a preset"),
        ({"harness": "pi", "files": {"a": "cost: $5"}}, "a `$` in 'cost: $5'"),
        ({"harness": "pi", "command": ["${where}"]}, "${where}"),
        ({"harness": "pi", "history": "mine"}, "history"),
        ({"harness": "pi", "agent": "harness"}, "cannot run as 'harness'"),
        ({"harness": "pi", "agent": "nobody"}, "cannot run as 'nobody'"),
        ({"harness": "pi", "data": {}}, "answer"),
        (
            {"harness": "pi", "agent": "stem", "data": {"answer": "42", "mcp": ["web"]}},
            "data.data.mcp: a harness is not told of MCP servers",
        ),
    ],
)
def test_what_cannot_run_is_refused(data: dict[str, Any], problem: str) -> None:
    task = Task.model_validate(
        MATH.model_dump()
        | {"agent": "harness", "data": {"agent": "math", "data": {"answer": "42"}} | data}
    )
    with pytest.raises((InvalidRequest, ValidationError)) as refusal:
        AgentRegistry().make(task)
    error = refusal.value
    said = problems_of(error) if isinstance(error, ValidationError) else str(error)
    assert problem in said


def test_a_program_may_hold_dollar_signs() -> None:
    task = with_program(MATH, "print('$HOME ${x}')")
    AgentRegistry().make(task)
    assert task.data["files"] == {"${home}/agent.py": "print('$$HOME $${x}')"}
