"""Options that `prorl serve` and `prorl front` have in common."""

import os
from pathlib import Path
from typing import Annotated

import typer

from prorl_service.errors import ProRLError
from prorl_service.logs import LogFormat

Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")]
Urls = Annotated[list[str], typer.Option("--backend", help="URL of an engine. Repeatable.")]
Tokenizer = Annotated[
    str | None, typer.Option(help="Directory or hub name; default: the engine's model.")
]
Agents = Annotated[
    list[str], typer.Option("--agent", help="Import path 'module:Class'. Repeatable.")
]
JournalFile = Annotated[
    str | None,
    typer.Option(
        help="File for what was accepted and what came of it, which a restart goes on from; "
        "default: one for the port, in ~/.local/state/prorl. 'none' keeps it in memory."
    ),
]
KeepMb = Annotated[
    int, typer.Option(min=1, help="Room for ended rollouts that nobody acknowledged.")
]
KeepHours = Annotated[float, typer.Option(min=0, help="How long they are kept at most.")]
MaxUnfinished = Annotated[
    int, typer.Option(min=1, help="Rollouts accepted and not ended; more are refused.")
]
DrainS = Annotated[
    float, typer.Option(min=0, help="What runs may take to end when the service is stopped.")
]
MaxBodyMb = Annotated[int, typer.Option(min=1, help="Largest request body.")]
TokenFile = Annotated[
    Path | None,
    typer.Option(help="File with the bearer token to ask for; default: PRORL_TOKEN, if set."),
]
Announce = Annotated[
    Path | None,
    typer.Option(help="File NAME.json for its address, which is there while it takes rollouts."),
]
AnnounceHost = Annotated[
    str | None, typer.Option(help="By which others reach it; default: --host, or this machine.")
]
Log = Annotated[LogFormat, typer.Option("--log-format", help="'json' writes one object a line.")]


def journal_path(given: str | None, port: int) -> Path | None:
    if given == "none":
        return None
    if given is not None:
        return Path(given)
    if port == 0:
        raise ProRLError(
            "there is no port to name the journal after", hint="`--journal FILE`, or 'none'"
        )
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(state) / "prorl" / f"journal-{port}.sqlite"
