"""`prorl grafana`: a dashboard for Grafana."""

import json

from prorl_service.monitoring.grafana import dashboard


def grafana() -> None:
    """Print a Grafana dashboard of the services' Prometheus metrics, ready to import."""
    print(json.dumps(dashboard(), indent=2, ensure_ascii=False))
