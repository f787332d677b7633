"""Sandboxes of the rollout service as an environment of Harbor.

`harbor run -e prorl_harbor:Environment -p TASKS`. Runs in Harbor's own process; needs no service,
daemon or Docker.
"""

from prorl_harbor.environment import Environment
from prorl_harbor.runtime import close

__all__ = ["Environment", "close"]
