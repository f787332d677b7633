"""Monitoring of running services: a dashboard for Grafana, alert rules for Prometheus.

`dashboard.json` can be imported into Grafana 10 or newer; data source and instance are variables. A
test checks that every metric named in the files exists and that every metric has a panel.
"""

from importlib.resources import files

JOB = 'job="prorl"'
"""Label matcher, in `alerts.yml`, of the job that scrapes the services."""


def dashboard() -> str:
    """Returns the dashboard as Grafana's JSON."""
    return files(__name__).joinpath("dashboard.json").read_text(encoding="utf-8")


def alert_rules(job: str) -> str:
    """Returns a file for Prometheus' `rule_files`. `job`: name of the job, without quotes."""
    rules = files(__name__).joinpath("alerts.yml").read_text(encoding="utf-8")
    return rules.replace(JOB, f'job="{job}"')
