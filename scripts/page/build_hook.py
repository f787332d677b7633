"""Refuses to build a package whose page would not work: its third-party files have to be there.

An editable install needs none of them: the service says what to run when the page is opened.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VENDOR = "prorl_service/page/static/vendor"
FILES = ("htm-preact.js", "uplot.js", "uplot.css", "ansi_up.js", "LICENSES.txt")


class PageIsComplete(BuildHookInterface[Any]):
    """What hatchling calls before it builds."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        directory = Path(self.root) / VENDOR
        missing = [name for name in FILES if not (directory / name).is_file()]
        if missing and version != "editable":
            self.app.abort(f"the page lacks {', '.join(missing)}: run scripts/setup-page first")
