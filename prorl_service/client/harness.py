"""Tasks for a program of its own, in place of an agent's loop: see docs/harnesses.md. Pure."""

from prorl_service.schemas import Task

AGENT = "harness"
"""Name of the agent that runs programs."""


def with_harness(task: Task, harness: str, **options: object) -> Task:
    """Returns the task for the preset `harness`, graded by the task's agent as before.

    `options`: other fields of the agent's data, such as `version`, `environment` and `history`.
    """
    data = {"harness": harness, "agent": task.agent, "data": task.data, **options}
    return Task.model_validate(task.model_dump() | {"agent": AGENT, "data": data})


def with_program(task: Task, program: str, **options: object) -> Task:
    """Returns the task for `program`, the text of a Python file: it runs with the packages of the
    preset `python`, and gets the task as its first argument."""
    escaped = program.replace("$", "$$")  # files are templates
    return with_harness(task, "python", files={"${home}/agent.py": escaped}, **options)
