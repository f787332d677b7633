"""Options that `prorl serve` and `prorl front` have in common."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from prorl_service.cli.errors import problems_of
from prorl_service.errors import ProRLError
from prorl_service.net.credentials import state_directory, take_key
from prorl_service.rollouts.journal.tables import Retention
from prorl_service.schemas import BackendSpec
from prorl_service.utils.logs import LogFormat
from prorl_service.utils.runs import new_run

RUN_NAME = r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,59}"

Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")]
Urls = Annotated[list[str], typer.Option("--backend", help="URL of an engine. Repeatable.")]
BackendKeyFile = Annotated[
    Path | None,
    typer.Option(help="File with the key of those engines; default: PRORL_BACKEND_KEY, if set."),
]
Tokenizer = Annotated[
    str | None, typer.Option(help="Directory or hub name; default: the engine's model.")
]
Agents = Annotated[
    list[str], typer.Option("--agent", help="Import path 'module:Class'. Repeatable.")
]
JournalFile = Annotated[
    str | None,
    typer.Option(
        help="SQLite file of accepted groups and their results; default: one for the run, "
        "~/.local/state/prorl/RUN.sqlite. 'none' keeps it in memory."
    ),
]
Run = Annotated[
    str | None,
    typer.Option("--run", help="Name of the training run; default: a new one at each start."),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Continue the run that the journal holds; one that holds nothing simply begins.",
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
MaxConnections = Annotated[
    int, typer.Option(min=16, help="Open connections; more are refused. A waiting call is one.")
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        help="File with the bearer token to ask for; default: PRORL_TOKEN, if set, or that of your "
        "services on this machine, which the first makes (`prorl token` prints it)."
    ),
]
NoToken = Annotated[
    bool, typer.Option("--no-token", help="Ask for none; everybody on this machine may run tasks.")
]
AllowHost = Annotated[
    list[str],
    typer.Option(help="Another name by which browsers may call it without a token. Repeatable."),
]
Announce = Annotated[
    Path | None,
    typer.Option(help="File NAME.json for its address, which is there while it takes rollouts."),
]
AnnounceHost = Annotated[
    str | None, typer.Option(help="By which others reach it; default: --host, or this machine.")
]
Log = Annotated[LogFormat, typer.Option("--log-format", help="'json' writes one object a line.")]


def backends(
    urls: Sequence[str], tokenizer: str | None, key_file: Path | None
) -> tuple[BackendSpec, ...]:
    """Takes the key out of the environment in any case. Raises `ProRLError`."""
    key = take_key("PRORL_BACKEND_KEY", key_file, "the engines' key")
    try:
        return tuple(BackendSpec(url=url, tokenizer=tokenizer, api_key=key) for url in urls)
    except ValidationError as error:
        raise ProRLError(f"--backend: {problems_of(error)}") from None


def retention(keep_mb: int, keep_hours: float) -> Retention:
    return Retention(keep_bytes=keep_mb * 2**20, keep_s=keep_hours * 3600)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The fields of `Settings` with these names."""

    run: str | None
    journal: Path | None
    resume: bool


def run_options(run: str | None, journal: str | None, *, resume: bool) -> RunOptions:
    """Raises `ProRLError`."""
    if run is not None and not re.fullmatch(RUN_NAME, run):
        raise ProRLError(
            f"--run {run}: a run's name is letters, digits, '.', '_' and '-', at most 60",
            hint="it names a file",
        )
    if journal is not None:
        return RunOptions(run, None if journal == "none" else Path(journal), resume)
    if run is None and resume:
        raise ProRLError("--resume: which run?", hint="add `--run NAME` or `--journal FILE`")
    run = run or new_run()
    return RunOptions(run, state_directory() / f"{run}.sqlite", resume)
