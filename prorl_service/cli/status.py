"""`prorl status`: one look at what a service reports about itself."""

import sys
from typing import Annotated

from cyclopts import Parameter

from prorl_service.cli.figures import heading, lines
from prorl_service.cli.screen import Screen
from prorl_service.cli.service import DEFAULT_URL, Url, connected

NAME_CHARS = 10


def status(
    *,
    url: Url = DEFAULT_URL,
    as_json: Annotated[bool, Parameter("--json")] = False,
) -> None:
    """Show what a service is doing: its run, stages, engines, sandboxes and failures.

    Parameters
    ----------
    as_json
        Print JSON, for programs.
    """
    print_status(url, as_json=as_json)


def print_status(url: str, *, as_json: bool) -> None:
    with connected(url) as client:
        now = client.status()
    screen = Screen(sys.stdout)
    if as_json:
        screen.line(now.model_dump_json(indent=2))
        return
    head = heading(url, now)
    screen.line(f"{head.name}: {head.text}", head.style)
    for line in lines(now):
        screen.line(line.text, line.style, prefix=f"{line.name:{NAME_CHARS}} ")
