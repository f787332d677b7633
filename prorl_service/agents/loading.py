"""An agent that its author names: 'my_agent.py:MyAgent', 'package.module:MyAgent', or 'math'.

The service itself takes no files (`registry`): what it runs is importable on every node.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

from prorl_service.agents.registry import AgentRegistry, imported
from prorl_service.errors import InvalidRequest


def load(source: str) -> tuple[AgentRegistry, str]:
    """Returns a registry that has the agent, and the agent's name. Raises `InvalidRequest`."""
    registry = AgentRegistry()
    module, colon, class_name = source.partition(":")
    if source in registry.names:
        return registry, source
    if module.endswith(".py"):
        if not class_name:
            raise InvalidRequest(
                f"agent {source!r} names no class", hint=f"write it as '{module}:Class'"
            )
        module = _module_of(Path(module), source)
    elif not colon:
        raise InvalidRequest(
            f"no agent {source!r}",
            hint=f"there are {', '.join(registry.names)}; write your own as 'my_agent.py:Class'",
        )
    handler = imported(f"{module}:{class_name}")
    registry.add(handler, source)
    return registry, handler.name


def _module_of(file: Path, source: str) -> str:
    """Makes `file` importable, here and in scoring processes. Returns its module's name.

    Raises `InvalidRequest`.
    """
    file = file.resolve()
    if not file.is_file():
        raise InvalidRequest(f"agent {source!r}: there is no file {file}")
    root, names = file.parent, [file.stem]
    while (root / "__init__.py").is_file():
        names.insert(0, root.name)
        root = root.parent
    if not all(name.isidentifier() for name in names):
        raise InvalidRequest(
            f"agent {source!r}: {'.'.join(names)!r} is no name of a module",
            hint="rename the file: letters, digits and '_'",
        )
    if str(root) not in sys.path:
        sys.path.append(str(root))  # last, so that installed modules come first
    spec = find_spec(names[0])
    if spec is None or not spec.origin or root not in Path(spec.origin).resolve().parents:
        raise InvalidRequest(
            f"agent {source!r}: another module is called {names[0]!r}", hint="rename the file"
        )
    return ".".join(names)
