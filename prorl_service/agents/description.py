"""An agent's description for people: its docstring, the data it takes, the tools it may offer.

All of it is what its class declares, and the names of installed tools; nothing is run.
"""

import inspect
import sys

from prorl_service.agents.base import AgentHandler
from prorl_service.schemas import Stage
from prorl_service.schemas.views import AgentInfo
from prorl_service.tools.base import function_schema
from prorl_service.tools.registry import choices

BUILT_IN = "prorl_service.agents."


def describe(agent: type[AgentHandler]) -> AgentInfo:
    return AgentInfo(
        name=agent.name,
        description=_docstring(agent),
        source=f"{agent.__module__}:{agent.__qualname__}",
        is_built_in=is_built_in(agent),
        sandbox_stages=[stage for stage in Stage if stage in agent.sandbox_stages],
        data_schema=None if agent.data_model is None else agent.data_model.model_json_schema(),
        tools=[function_schema(tool) for tool in agent.offers or choices(agent.data_model)],
    )


def is_built_in(agent: type[AgentHandler]) -> bool:
    return agent.__module__.startswith(BUILT_IN)


def _docstring(agent: type[AgentHandler]) -> str:
    """The class's own, not one that it inherits; else its module's, which may be all about it."""
    module = sys.modules.get(agent.__module__)
    own, of_module = agent.__doc__, module.__doc__ if module is not None else None
    return inspect.cleandoc(own or of_module or "")
