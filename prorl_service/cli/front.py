"""`prorl front`: one address for several services."""

import sys
from typing import Annotated

from cyclopts import Parameter

from prorl_service.server.compose import front_service
from prorl_service.server.run import run
from prorl_service.server.settings import FrontSettings, HttpOptions, panel
from prorl_service.utils import logs
from prorl_service.utils.logs import LogFormat


def front(
    *,
    settings: Annotated[FrontSettings, Parameter(name="*")],
    http: Annotated[HttpOptions, panel("HTTP")] = HttpOptions(),
    log_format: LogFormat = "text",
) -> None:
    """Put one address in front of several services, which can join and leave at any time.

    The services must use the front's token. Each option can also be set by an environment variable,
    such as PRORL_FRONT_WAIT_FOR=4, or in the YAML file of --config.

    Parameters
    ----------
    log_format
        Format of the log; 'json' writes one object per line.
    """
    logs.configure(log_format)
    token = http.token()
    run(front_service(settings, token, report=_report), http, token)


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
