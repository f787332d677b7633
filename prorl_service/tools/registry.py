"""Which tools exist, by name: those built in and those of installed packages.

A third party offers a tool without a fork: a class with what `Tool` asks for, made without
arguments, as an entry point in group `prorl.tools`. Later ones replace earlier ones of the same
name.
"""

from importlib.metadata import entry_points

from prorl_service.errors import InvalidRequest
from prorl_service.tools.base import Tool
from prorl_service.tools.bash import Bash
from prorl_service.tools.ipython import IPython
from prorl_service.tools.str_replace_editor import StrReplaceEditor
from prorl_service.tools.submit import Submit

ENTRY_POINT_GROUP = "prorl.tools"


class ToolRegistry:
    def __init__(self) -> None:
        """Raises `InvalidRequest` for an entry point that is no tool."""
        self._tools: dict[str, Tool] = {
            tool.name: tool for tool in (Bash(), IPython(), StrReplaceEditor(), Submit())
        }
        for entry_point in entry_points(group=ENTRY_POINT_GROUP):
            tool = entry_point.load()()
            if not isinstance(tool, Tool):
                raise InvalidRequest(f"{entry_point.value} is not a tool")
            self._tools[tool.name] = tool

    @property
    def names(self) -> list[str]:
        return sorted(self._tools)

    def __getitem__(self, name: str) -> Tool:
        """Raises `KeyError`."""
        return self._tools[name]
