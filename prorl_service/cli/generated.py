"""`prorl token`, `prorl grafana` and `prorl alerts`: what other programs need, printed."""

import os

from prorl_service.errors import ProRLError


def token() -> None:
    """Print the token of your services on this machine, for curl and for clients elsewhere."""
    from prorl_service.net.credentials import TOKEN_VARIABLE, make_own_token

    print(os.environ.get(TOKEN_VARIABLE) or make_own_token())


def grafana() -> None:
    """Print a Grafana dashboard of the services' Prometheus metrics, ready to import."""
    from prorl_service.monitoring import dashboard

    print(dashboard(), end="")


def alerts(*, job: str = "prorl") -> None:
    """Print alert rules for Prometheus, for a file listed in its `rule_files`.

    Parameters
    ----------
    job
        Name of the job in Prometheus' configuration that scrapes the services.
    """
    from prorl_service.monitoring import alert_rules

    if '"' in job or "\\" in job:
        raise ProRLError("--job: a name must not contain quotes or backslashes")
    print(alert_rules(job), end="")
