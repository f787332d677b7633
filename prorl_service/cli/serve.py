"""`prorl serve`: the rollout service."""

from typing import Annotated

from cyclopts import Parameter

from prorl_service.server.compose import rollout_service
from prorl_service.server.run import run
from prorl_service.server.settings import HttpOptions, ServiceSettings, panel
from prorl_service.utils import logs
from prorl_service.utils.logs import LogFormat


def serve(
    *,
    settings: Annotated[ServiceSettings, Parameter(name="*")] = ServiceSettings(),
    http: Annotated[HttpOptions, panel("HTTP")] = HttpOptions(),
    log_format: LogFormat = "text",
) -> None:
    """Run the rollout service.

    Each option can also be set by an environment variable, such as PRORL_SERVE_RUN_WORKERS=8, or in
    the YAML file of --config.

    Parameters
    ----------
    log_format
        Format of the log; 'json' writes one object per line.
    """
    logs.configure(log_format)
    run(rollout_service(settings, shared=http.shared()), http, http.token())
