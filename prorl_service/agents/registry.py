"""Which agents the service offers: its own, those of installed packages, those named at start-up.

A package offers one by an entry point in the group `prorl.agents`; an operator adds one by import
path (`prorl serve --agent my_package.my_module:MyAgent`). Clients can only choose by name.
"""

from collections.abc import Iterable
from importlib.metadata import entry_points
from pkgutil import resolve_name
from typing import Any

from prorl_service.agents.base import AgentHandler
from prorl_service.agents.code import CodeAgent
from prorl_service.agents.math import MathAgent
from prorl_service.agents.stem import StemAgent
from prorl_service.agents.swe import SweAgent
from prorl_service.errors import InvalidRequest

ENTRY_POINT_GROUP = "prorl.agents"


class AgentRegistry:
    def __init__(self, import_paths: Iterable[str] = ()) -> None:
        """Raises `InvalidRequest` for a path that does not lead to an `AgentHandler`."""
        self._handlers: dict[str, type[AgentHandler]] = {
            agent.name: agent for agent in (CodeAgent, MathAgent, StemAgent, SweAgent)
        }
        for entry_point in entry_points(group=ENTRY_POINT_GROUP):
            self._add(entry_point.load(), entry_point.value)
        for path in import_paths:
            self._add(_resolve(path), path)

    @property
    def names(self) -> list[str]:
        return sorted(self._handlers)

    def __getitem__(self, name: str) -> type[AgentHandler]:
        """Raises `KeyError`."""
        return self._handlers[name]

    def _add(self, handler: Any, source: str) -> None:
        if not (isinstance(handler, type) and issubclass(handler, AgentHandler)):
            raise InvalidRequest(f"{source} is not a subclass of AgentHandler")
        self._handlers[handler.name] = handler


def _resolve(path: str) -> Any:
    try:
        return resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidRequest(
            f"cannot import agent {path!r}: {error}", hint="write it as 'package.module:Class'"
        ) from error
