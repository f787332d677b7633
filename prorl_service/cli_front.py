"""`prorl front`: one address for several services."""

from pathlib import Path
from typing import Annotated

import typer

from prorl_service import logs
from prorl_service.announcement import announcement
from prorl_service.cli_errors import one_line_errors
from prorl_service.cli_options import (
    Agents,
    Announce,
    AnnounceHost,
    DrainS,
    Host,
    JournalFile,
    KeepHours,
    KeepMb,
    Log,
    MaxBodyMb,
    MaxUnfinished,
    Port,
    TokenFile,
    Tokenizer,
    Urls,
    journal_path,
)
from prorl_service.front.waiting import wait_for_services
from prorl_service.pipeline.journal_tables import Retention
from prorl_service.pipeline.pipeline import PipelineConfig
from prorl_service.schemas import BackendSpec
from prorl_service.server.app import create_app
from prorl_service.server.auth import take_token
from prorl_service.server.run import run
from prorl_service.server.settings import Settings


def front(
    *,
    services: Annotated[
        Path, typer.Option(help="Directory in which the services announce themselves.")
    ],
    wait_for: Annotated[
        int, typer.Option(min=0, help="Services that must answer before it begins.")
    ] = 1,
    wait_s: Annotated[float, typer.Option(min=0, help="How long they may take to.")] = 600.0,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    backend: Urls = [],  # noqa: B006
    tokenizer: Tokenizer = None,
    agent: Agents = [],  # noqa: B006
    journal: JournalFile = None,
    keep_mb: KeepMb = 4096,
    keep_hours: KeepHours = 168.0,
    max_unfinished: MaxUnfinished = 50_000,
    drain_s: DrainS = 10.0,
    max_body_mb: MaxBodyMb = 64,
    token_file: TokenFile = None,
    announce: Announce = None,
    announce_host: AnnounceHost = None,
    log_format: Log = "text",
) -> None:
    """Have several rollout services do the rollouts, behind one address. Their token is its own."""
    logs.configure(log_format)
    with one_line_errors():
        settings = Settings(
            services=services,
            backends=tuple(BackendSpec(url=url, tokenizer=tokenizer) for url in backend),
            agents=tuple(agent),
            warm_sandboxes=0,
            journal=journal_path(journal, port),
            retention=Retention(keep_bytes=keep_mb * 2**20, keep_s=keep_hours * 3600),
            token=take_token(token_file, host),
            max_body_mb=max_body_mb,
            pipeline=PipelineConfig(max_unfinished=max_unfinished),
        )
        announced = announcement(announce, announce_host, host)
        application = create_app(settings)
        wait_for_services(
            services,
            settings.token,
            count=wait_for,
            timeout_s=wait_s,
            tell=lambda line: typer.echo(line, err=True),
        )
    run(application, host=host, port=port, drain_s=drain_s, announcement=announced)
