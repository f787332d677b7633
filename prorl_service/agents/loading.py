"""An agent that its author names: 'my_agent.py:MyAgent', 'package.module:MyAgent', or 'math'."""

from prorl_service.agents.registry import AgentRegistry, imported
from prorl_service.errors import InvalidRequest


def load(source: str) -> tuple[AgentRegistry, str]:
    """Returns a registry that has the agent, and the agent's name. Raises `InvalidRequest`."""
    registry = AgentRegistry()
    if source in registry.names:
        return registry, source
    if ":" not in source and not source.endswith(".py"):
        raise InvalidRequest(
            f"no agent {source!r}",
            hint=f"there are {', '.join(registry.names)}; write your own as 'my_agent.py:Class'",
        )
    handler = imported(source)
    registry.add(handler, source)
    return registry, handler.name
