"""`prorl open`, `prorl grafana` and `prorl alerts`: what other programs need."""

import html
import os
import sys
import webbrowser

from prorl_service.cli.service import DEFAULT_URL, Url
from prorl_service.errors import ProRLError


def open_page(*, url: Url = DEFAULT_URL) -> None:
    """Open a service's page in a browser, signed in; print its link.

    The link has the token in its fragment: who sees it may use the service. Without a display it is
    printed alone.
    """
    from prorl_service.net.credentials import authorization, page_link, state_directory

    token = authorization(url).get("Authorization", "").removeprefix("Bearer ")
    link = page_link(url, token or None)
    print(link)
    if sys.platform == "linux" and not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        return
    # By a file that only this user can read: all users see the arguments of a browser's process.
    file = state_directory() / "open.html"
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    file.touch(mode=0o600)
    file.write_text(f'<meta http-equiv="refresh" content="0; url={html.escape(link)}">\n')
    webbrowser.open(file.as_uri())


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
