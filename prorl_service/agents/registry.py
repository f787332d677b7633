"""Registry of agents: built-in ones, those of installed packages, those named at start-up.

A package offers an agent as an entry point in the group `prorl.agents`; an operator adds one by
import path or file (`prorl serve --agent my_module:MyAgent`, `my_agent.py:MyAgent`). Clients can
only choose by name.
"""

import inspect
import os
import sys
import traceback
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from prorl_service.agents.base import AgentHandler
from prorl_service.agents.code.agent import CodeAgent
from prorl_service.agents.dialogue.agent import DialogueAgent
from prorl_service.agents.harbor.agent import HarborAgent
from prorl_service.agents.harness.agent import HarnessAgent
from prorl_service.agents.math import MathAgent
from prorl_service.agents.nemo_gym.agent import NemoGymAgent
from prorl_service.agents.openenv import OpenEnvAgent
from prorl_service.agents.reasoning_gym import ReasoningGymAgent
from prorl_service.agents.rubric import RubricAgent
from prorl_service.agents.stem import StemAgent
from prorl_service.agents.swe.agent import SweAgent
from prorl_service.errors import InvalidRequest
from prorl_service.schemas import Task
from prorl_service.tools.registry import all_tools

ENTRY_POINT_GROUP = "prorl.agents"
FORM = "write it as 'package.module:Class'"


class AgentRegistry:
    def __init__(self, import_paths: Iterable[str] = ()) -> None:
        """Modules of `import_paths` may lie in the current directory.

        Raises `InvalidRequest` for an agent that is not an `AgentHandler` with a new name, and for
        a package's tool that is not a tool.
        """
        all_tools()
        self._handlers: dict[str, type[AgentHandler]] = {
            agent.name: agent
            for agent in (
                CodeAgent,
                DialogueAgent,
                HarborAgent,
                HarnessAgent,
                MathAgent,
                NemoGymAgent,
                OpenEnvAgent,
                ReasoningGymAgent,
                RubricAgent,
                StemAgent,
                SweAgent,
            )
        }
        for entry_point in entry_points(group=ENTRY_POINT_GROUP):
            self.add(entry_point.load(), entry_point.value)
        for path in import_paths:
            self.add(imported(path), path)

    @property
    def names(self) -> list[str]:
        return sorted(self._handlers)

    def __getitem__(self, name: str) -> type[AgentHandler]:
        """Raises `KeyError`."""
        return self._handlers[name]

    def make(self, task: Task) -> AgentHandler:
        """Makes the handler of a task, which may change it: give each a copy. Raises `KeyError`,
        and as `AgentHandler.create`."""
        return self[task.agent].create(task, self._handlers)

    def add(self, handler: Any, source: str) -> None:
        """`source` names it in errors. Raises `InvalidRequest` like the constructor."""
        _check(handler, source)
        other = self._handlers.setdefault(handler.name, handler)
        if _path(other) != _path(handler):
            raise InvalidRequest(
                f"agent {source} is named {handler.name!r}, but {_path(other)} already is",
                hint="give its class another `name`",
            )


def _check(handler: Any, source: str) -> None:
    """Raises `InvalidRequest`."""
    if not (isinstance(handler, type) and issubclass(handler, AgentHandler)):
        raise InvalidRequest(f"{source} is not a subclass of AgentHandler")
    if not isinstance(getattr(handler, "name", None), str):
        raise InvalidRequest(
            f"agent {source} has no name", hint="set `name` in the class; tasks choose by it"
        )
    if missing := sorted(handler.__abstractmethods__):
        raise InvalidRequest(
            f"agent {source} lacks {', '.join(missing)}", hint="define them; see AgentHandler"
        )


def registry_with(source: str) -> tuple[AgentRegistry, str]:
    """Finds an agent that its author names: 'my_agent.py:MyAgent', 'package.module:MyAgent', or
    'math'. Returns a registry that has the agent, and the agent's name. Raises `InvalidRequest`."""
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


def imported(path: str, *, role: str = "agent") -> Any:
    """Returns the object at the import path 'package.module:Class' or 'directory/file.py:Class'.

    A file must lie at that place on each machine that runs the agent. `role`: what errors call the
    path. Raises `InvalidRequest`.
    """
    source = f"{role} {path!r}"
    module_name, _, class_name = path.partition(":")
    is_file = module_name.endswith(".py")
    if not class_name:
        form = f"write it as '{module_name}:Class'" if is_file else FORM
        raise InvalidRequest(f"{source} names no class", hint=form)
    if is_file:
        module_name = _module_of(Path(module_name), source)
    module = _import(module_name, source)
    found = module
    for name in class_name.split("."):
        found = getattr(found, name, None)
        if found is None:
            raise InvalidRequest(
                f"{source}: {module_name} has no {class_name}", hint=_offer(module)
            )
    return found


def _module_of(file: Path, source: str) -> str:
    """Makes `file` importable, here and in scoring processes. Returns its module's name.

    Raises `InvalidRequest`.
    """
    file = file.resolve()
    if not file.is_file():
        raise InvalidRequest(f"{source}: there is no file {file}")
    root, names = file.parent, [file.stem]
    while (root / "__init__.py").is_file():
        names.insert(0, root.name)
        root = root.parent
    if not all(name.isidentifier() for name in names):
        raise InvalidRequest(
            f"{source}: {'.'.join(names)!r} is no name of a module",
            hint="rename the file: letters, digits and '_'",
        )
    if str(root) not in sys.path:
        sys.path.append(str(root))  # last, so that installed modules come first
    spec = find_spec(names[0])
    if spec is None or not spec.origin or root not in Path(spec.origin).resolve().parents:
        raise InvalidRequest(
            f"{source}: another module is called {names[0]!r}", hint="rename the file"
        )
    return ".".join(names)


def _import(name: str, source: str) -> Any:
    if (directory := os.getcwd()) not in sys.path:
        sys.path.append(directory)  # last, so that installed modules come first
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            problem, hint = f"no module {error.name!r} in {directory} or among installed ones", FORM
        else:
            problem, hint = f"it imports {error.name!r}, which is not installed", ""
        raise InvalidRequest(f"{source}: {problem}", hint=hint) from error
    except Exception as error:  # importing a module can raise anything
        raise InvalidRequest(f"{source}: {_place(error)}{_said(error)}") from error


def _said(error: Exception) -> str:
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _place(error: Exception) -> str:
    """Returns the innermost file and line, where the author has to look first."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: "
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}, line {frames[-1].lineno}: " if frames else ""


def _offer(module: Any) -> str:
    agents = [
        name
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, AgentHandler)
        and not inspect.isabstract(value)
    ]
    return f"it has {', '.join(agents)}" if agents else "it has no subclass of AgentHandler"


def _path(handler: type[AgentHandler]) -> str:
    return f"{handler.__module__}:{handler.__qualname__}"
