"""Registry of tools by name: built-in ones and those of installed packages.

A package offers a tool as an entry point in the group `prorl.tools`: a class that implements `Tool`
and takes no arguments. Later tools replace earlier ones of the same name.
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
        """Raises `InvalidRequest` for an entry point that is not a tool."""
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
