"""`prorl open`, `prorl grafana` and `prorl alerts`: what other programs need."""

import webbrowser

from prorl_service.cli.service import DEFAULT_URL, Url
from prorl_service.errors import ProRLError


def open_page(*, url: Url = DEFAULT_URL) -> None:
    """Open a service's page in a browser, signed in; print its link.

    The link has the token in its fragment: who sees it may use the service.
    """
    from prorl_service.net.credentials import authorization, page_link

    token = authorization(url).get("Authorization", "").removeprefix("Bearer ")
    link = page_link(url, token or None)
    print(link)
    webbrowser.open(link)


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
