"""`docs/reference/task_data.md`: what `task.data` of each built-in agent has, out of its model."""

from collections.abc import Iterator

from prorl_service.agents.description import describe
from prorl_service.agents.registry import AgentRegistry
from prorl_service.schemas.views import AgentInfo
from scripts.documentation.reference.http import Schema, field_rows

GUIDES = {
    "code": "math_code_science.md",
    "dialogue": "dialogue.md",
    "harbor": "harbor.md",
    "harness": "harnesses.md",
    "math": "math_code_science.md",
    "nemo_gym": "environments.md",
    "openenv": "environments.md",
    "reasoning_gym": "math_code_science.md",
    "rubric": "math_code_science.md",
    "stem": "math_code_science.md",
    "swe": "swe.md",
}
"""The page that explains the tasks of an agent."""
INTRODUCTION = """\
# Task data

`task.data` holds what an agent needs besides the messages. Each agent checks it before anything
starts, and refuses fields that it does not know. `GET /v1/agents` of a running service has the same
as JSON schemas, agents of your own included.
"""


def page() -> str:
    registry = AgentRegistry()
    parts = [INTRODUCTION]
    for name in registry.names:
        if registry[name].__module__.startswith("prorl_service."):
            parts += _agent(describe(registry[name]))
    return "\n".join(parts).rstrip() + "\n"


def _agent(agent: AgentInfo) -> Iterator[str]:
    yield f"## {agent.name}\n"
    yield f"{agent.description}\n"
    tools = ", ".join(f"`{one['function']['name']}`" for one in agent.tools) or "none of its own"
    stages = ", ".join(stage.value.upper() for stage in agent.sandbox_stages) or "no stage"
    guide = GUIDES[agent.name]
    yield f"Tools: {tools}. Sandbox in: {stages}. Guide: [{guide}](../{guide}).\n"
    if agent.data_schema is not None:
        yield from _table(agent.data_schema)
        for name, one in agent.data_schema.get("$defs", {}).items():
            if "properties" in one:
                yield f"### {agent.name}: {name}\n"
                yield f"{one.get('description', '')}\n"
                yield from _table(one)


def _table(schema: Schema) -> Iterator[str]:
    yield "| field | type | |"
    yield "|---|---|---|"
    yield from field_rows(schema)
    yield ""
