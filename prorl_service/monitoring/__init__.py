"""Monitoring of running services: panels for Grafana, alert rules for Prometheus.

Tables of queries over the metrics of `/metrics`, and their file formats. Pure. A test checks that
every metric named here exists and that every existing metric has a panel.
"""
