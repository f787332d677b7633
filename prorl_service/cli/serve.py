"""`prorl serve` and `prorl front`: the rollout service, and one address for several."""

from typing import Annotated

from cyclopts import Parameter

from prorl_service.cli.program import say
from prorl_service.errors import ProRLError
from prorl_service.server.compose import front_service, rollout_service
from prorl_service.server.run import run
from prorl_service.server.settings import FrontSettings, HttpOptions, ServiceSettings, panel
from prorl_service.utils import logs
from prorl_service.utils.logs import LogFormat

Http = Annotated[HttpOptions, panel("HTTP")]
Format = Annotated[
    LogFormat, Parameter(help="Format of the log; 'json' writes one object per line.")
]


def serve(
    *,
    settings: Annotated[ServiceSettings, Parameter(name="*")] = ServiceSettings(),
    http: Http = HttpOptions(),
    log_format: Format = "text",
) -> None:
    """Run the rollout service.

    Each option can also be set by an environment variable, such as PRORL_SERVE_RUN_WORKERS=8, or in
    the YAML file of --config.
    """
    logs.configure(log_format)
    run(rollout_service(settings, shared=http.shared()), http, http.token())


def front(
    *,
    settings: Annotated[FrontSettings, Parameter(name="*")],
    http: Http = HttpOptions(),
    log_format: Format = "text",
) -> None:
    """Put one address in front of several services, which can join and leave at any time.

    The services must use the front's token. Each option can also be set by an environment variable,
    such as PRORL_FRONT_WAIT_FOR=4, or in the YAML file of --config.
    """
    if not settings.services.is_dir():
        raise ProRLError(
            f"--services {settings.services}: no such directory",
            hint="make it, or start a service with --announce DIRECTORY/NAME.json first",
        )
    logs.configure(log_format)
    token = http.token()
    run(front_service(settings, token, report=say), http, token)
