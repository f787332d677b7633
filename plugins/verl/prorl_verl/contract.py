"""Parts of VeRL and TransferQueue that the plug-in relies on, looked for before they are used.

The table of neighbours names them. VeRL changes: a release that renames one is refused with the
name, before a stack trace appears in a Ray worker's log.
"""

import importlib
import inspect
from collections.abc import Sequence
from typing import Any

from prorl_service.errors import ProRLError
from prorl_service.neighbours import neighbours


class IncompatibleVeRL(ProRLError):
    """The installed VeRL lacks something that the plug-in relies on."""


def check() -> None:
    """Raises `UntestedRelease`, or `IncompatibleVeRL` with all that is missing."""
    known = [neighbours()[name] for name in ("verl", "transfer_queue")]
    for one in known:
        one.check("rollout=prorl")
    missing = [
        *(lost for one in known for call in one.calls.items() for lost in _lost_parameters(*call)),
        *(lost for one in known for names in one.fields.items() for lost in _lost_fields(*names)),
    ]
    if missing:
        verl = known[0]
        raise IncompatibleVeRL(
            f"verl {verl.installed()} has changed what rollout=prorl relies on: "
            + ", ".join(missing),
            hint=f"install the newest prorl-service, or verl {verl.newest}",
        )


def _lost_parameters(name: str, wanted: Sequence[str]) -> list[str]:
    found = _find(name)
    if found is None:
        return [name]
    if not wanted:
        return []
    known = set(inspect.signature(inspect.unwrap(found)).parameters)
    return [f"{name}({parameter}=)" for parameter in wanted if parameter not in known]


def _lost_fields(name: str, wanted: Sequence[str]) -> list[str]:
    found = _find(name)
    if found is None:
        return [name]
    return [f"{name}.{field}" for field in wanted if field not in found.model_fields]


def _find(name: str) -> Any:
    """Returns None for what is not there. Raises `IncompatibleVeRL` for what cannot be imported."""
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or module).partition(".")[0] == module.partition(".")[0]:
            return None
        raise IncompatibleVeRL(
            f"{module} needs {error.name}, which is not installed", hint=f"pip install {error.name}"
        ) from None
    except ImportError:
        return None
    for part in path.split("."):
        found = getattr(found, part, None)
    return found
