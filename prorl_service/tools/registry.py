"""Tools by name: built-in ones and those of installed packages. Tasks choose among the names.

A package offers a tool as an entry point in the group `prorl.tools`: a class that implements `Tool`
and takes no arguments. Later tools replace earlier ones of the same name.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import Annotated

from pydantic import BaseModel, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from prorl_service.errors import InvalidRequest
from prorl_service.tools.base import Tool
from prorl_service.tools.bash import Bash
from prorl_service.tools.ipython import IPython
from prorl_service.tools.str_replace_editor import StrReplaceEditor
from prorl_service.tools.submit import Submit
from prorl_service.tools.view_image import ViewImage

ENTRY_POINT_GROUP = "prorl.tools"


@cache
def all_tools() -> Mapping[str, Tool]:
    """Returns the tools of this process by name. Raises `InvalidRequest` for an entry point that is
    not a tool."""
    tools: dict[str, Tool] = {
        tool.name: tool for tool in (Bash(), IPython(), StrReplaceEditor(), Submit(), ViewImage())
    }
    for entry_point in entry_points(group=ENTRY_POINT_GROUP):
        tool = entry_point.load()()
        if not isinstance(tool, Tool):
            raise InvalidRequest(f"{entry_point.value} is not a tool")
        tools[tool.name] = tool
    return tools


class _Registered:
    """Shows the names that exist in the JSON schema of a list of names."""

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {**handler(core), "items": {"type": "string", "enum": sorted(all_tools())}}


ToolNames = Annotated[
    list[str], _Registered(), Field(description="Tools that the model may call, by name.")
]
"""Field `tools` of a task's data; `tools_named` checks it."""


def tools_named(names: Sequence[str]) -> list[Tool]:
    """Returns the tools of a task's `data.tools`, each once. Raises `InvalidRequest` for a name
    that no tool has."""
    tools = all_tools()
    if unknown := [name for name in names if name not in tools]:
        raise InvalidRequest.of_field(
            "data.tools",
            f"no tool {unknown[0]!r}",
            hint=f"this service has: {', '.join(sorted(tools))}; an installed package adds one by"
            f" an entry point in {ENTRY_POINT_GROUP!r}",
        )
    return [tools[name] for name in dict.fromkeys(names)]


def choices(data: type[BaseModel] | None) -> list[Tool]:
    """Returns the tools among which tasks with such data choose; none without such a field."""
    fields = data.model_fields.values() if data is not None else ()
    chooses = any(isinstance(one, _Registered) for field in fields for one in field.metadata)
    return [*all_tools().values()] if chooses else []


def packages_of(tools: Sequence[Tool]) -> dict[str, str]:
    """Returns the modules that tools need where the service runs, and the extra that brings
    each."""
    return {
        module: extra for tool in tools for module, extra in getattr(tool, "packages", {}).items()
    }
