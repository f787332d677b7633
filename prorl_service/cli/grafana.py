"""`prorl grafana`: a dashboard for Grafana."""

import json

from prorl_service.monitoring.grafana import dashboard


def grafana() -> None:
    """Print a dashboard, to be imported into Grafana, of what services tell Prometheus."""
    print(json.dumps(dashboard(), indent=2, ensure_ascii=False))
