"""`prorl front`: one address for several services."""

from pathlib import Path
from typing import Annotated

import typer

from prorl_service.cli.errors import one_line_errors
from prorl_service.cli.options import (
    Agents,
    AllowHost,
    Announce,
    AnnounceHost,
    BackendKeyFile,
    DrainS,
    Host,
    JournalFile,
    KeepHours,
    KeepMb,
    Log,
    MaxBodyMb,
    MaxConnections,
    MaxUnfinished,
    NoToken,
    Port,
    Resume,
    Run,
    TokenFile,
    Tokenizer,
    Urls,
    backends,
    retention,
    run_options,
)
from prorl_service.front.discovery import announcement
from prorl_service.front.waiting import wait_for_services
from prorl_service.pipeline.pipeline import PipelineConfig
from prorl_service.server.app import create_app
from prorl_service.server.auth import take_token
from prorl_service.server.run import ServerOptions, run
from prorl_service.server.settings import Settings
from prorl_service.utils import logs


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
    backend_key_file: BackendKeyFile = None,
    tokenizer: Tokenizer = None,
    agent: Agents = [],  # noqa: B006
    run_name: Run = None,
    journal: JournalFile = None,
    resume: Resume = False,
    keep_mb: KeepMb = 4096,
    keep_hours: KeepHours = 168.0,
    max_unfinished: MaxUnfinished = 50_000,
    drain_s: DrainS = 10.0,
    max_body_mb: MaxBodyMb = 64,
    max_connections: MaxConnections = 4096,
    token_file: TokenFile = None,
    no_token: NoToken = False,
    allow_host: AllowHost = [],  # noqa: B006
    announce: Announce = None,
    announce_host: AnnounceHost = None,
    log_format: Log = "text",
) -> None:
    """Have several rollout services do the rollouts, behind one address. Their token is its own."""
    logs.configure(log_format)
    with one_line_errors():
        of_run = run_options(run_name, journal, resume=resume)
        settings = Settings(
            services=services,
            backends=backends(backend, tokenizer, backend_key_file),
            agents=tuple(agent),
            warm_sandboxes=0,
            run=of_run.run,
            journal=of_run.journal,
            resume=of_run.resume,
            retention=retention(keep_mb, keep_hours),
            token=take_token(token_file, host, is_off=no_token),
            allowed_hosts=tuple(allow_host),
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
        run(application, ServerOptions(host, port, drain_s, max_connections, announced))
