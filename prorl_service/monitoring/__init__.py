"""What to watch of running services: panels for Grafana, alert rules for Prometheus.

Tables of queries over the metrics of `/metrics`, and how they are written down. Pure; a test sees
to it that every metric named here exists, and that none there lacks a panel.
"""
