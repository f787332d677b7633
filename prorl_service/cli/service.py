"""The service that commands look at: its address, and clients that give up soon.

The token is found as all clients find it (`net.credentials`).
"""

from typing import Annotated

from cyclopts import Parameter

from prorl_service.client import RolloutClient

DEFAULT_URL = "http://localhost:8080"
RETRY_S = 2.0

HELP = "Address of the service or front; $PRORL_URL if that is set."
Url = Annotated[str, Parameter(help=HELP, env_var="PRORL_URL")]


def connected(url: str, *, retry_s: float = RETRY_S) -> RolloutClient:
    """Raises `ProRLError` for what is no URL."""
    return RolloutClient(url, retry_s=retry_s)
