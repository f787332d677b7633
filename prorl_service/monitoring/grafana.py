"""The dashboard as Grafana's JSON, made from the table of panels.

It can be imported into Grafana 10 or newer; data source and instance are variables.
"""

from typing import Any

from prorl_service.monitoring.panels import ROWS
from prorl_service.monitoring.queries import Panel, Query, Unit

Json = dict[str, Any]

UID = "prorl-service"
SCHEMA_VERSION = 39
COLUMNS = 24
STAT_HEIGHT, HEIGHT = 4, 8
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
INSTANCES = 'instance=~"$instance"'
WEIGHTS = "max(changes(prorl_policy_version{HERE}[$__interval])) > 0"

DECIMALS: dict[Unit, int] = {"none": 0}
COLOURS = {
    "done": "green",
    "failed": "red",
    "cancelled": "#8e8e8e",
    "healthy": "green",
    "updating": "yellow",
    "down": "red",
    "exported": "green",
    "refused": "red",
    "dropped": "orange",
}
"""Colours of series that mean the same in every panel; the others take Grafana's palette."""
COLOURED = ("{{state}}", "{{outcome}}")


def dashboard() -> Json:
    return {
        "uid": UID,
        "title": "ProRL rollout service",
        "description": "Rollouts, engines and sandboxes. Made by `prorl grafana`.",
        "tags": ["prorl"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "10s",
        "timezone": "browser",
        "templating": {"list": [_source_variable(), _instance_variable()]},
        "annotations": {"list": [_new_weights()]},
        "links": [],
        "panels": _panels(),
    }


def shown(query: str) -> str:
    """Returns `query` for the selected instances."""
    return query.replace("HERE", INSTANCES)


def _panels() -> list[Json]:
    """Lays out rows and their panels, from left to right and top to bottom."""
    placed: list[Json] = []
    y = 0
    for row in ROWS:
        place = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
        placed.append(
            {"id": len(placed) + 1, "type": "row", "title": row.title, "collapsed": False}
            | {"gridPos": place, "panels": []}
        )
        y += 1
        x = height = 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y = 0, y + height
            height = STAT_HEIGHT if panel.kind == "stat" else HEIGHT
            place = {"x": x, "y": y, "w": panel.width, "h": height}
            placed.append(_panel(panel, len(placed) + 1, place))
            x += panel.width
        y += height
    return placed


def _panel(panel: Panel, number: int, place: Json) -> Json:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": place,
        "targets": [_target(query, i) for i, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _colours(panel)},
        "options": _stat_options() if panel.kind == "stat" else _series_options(),
    }


def _target(query: Query, number: int) -> Json:
    return {
        "refId": chr(ord("A") + number),
        "datasource": SOURCE,
        "expr": shown(query.expr),
        "legendFormat": query.legend or "__auto",
        "editorMode": "code",
        "range": True,
    }


def _defaults(panel: Panel) -> Json:
    colours = panel.steps or (("green", 0),)
    steps = [
        {"color": colour, "value": value if number else None}
        for number, (colour, value) in enumerate(colours)
    ]
    defaults: Json = {
        "unit": panel.unit,
        "min": 0,
        "thresholds": {"mode": "absolute", "steps": steps},
        "color": {"mode": "thresholds" if panel.kind == "stat" else "palette-classic"},
        "noValue": "-",
    }
    if panel.is_share:
        defaults["max"] = 1
    if panel.unit in DECIMALS:
        defaults["decimals"] = DECIMALS[panel.unit]
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 25 if panel.is_stacked else 8,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.is_stacked else "none", "group": "A"},
        }
    return defaults


def _colours(panel: Panel) -> list[Json]:
    if not any(query.legend in COLOURED for query in panel.queries):
        return []
    return [
        {
            "matcher": {"id": "byName", "options": series},
            "properties": [
                {"id": "color", "value": {"mode": "fixed", "fixedColor": colour}},
            ],
        }
        for series, colour in COLOURS.items()
    ]


def _stat_options() -> Json:
    return {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "area",
        "justifyMode": "auto",
        "textMode": "value",
    }


def _series_options() -> Json:
    return {
        "legend": {
            "showLegend": True,
            "displayMode": "list",
            "placement": "bottom",
            "calcs": ["lastNotNull"],
        },
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def _source_variable() -> Json:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "options": [],
        "refresh": 1,
        "hide": 0,
    }


def _instance_variable() -> Json:
    query = "label_values(prorl_healthy, instance)"
    return {
        "name": "instance",
        "label": "Instance",
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": "instances"},
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "refresh": 2,
        "sort": 1,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "hide": 0,
    }


def _new_weights() -> Json:
    return {
        "name": "New weights",
        "datasource": SOURCE,
        "enable": True,
        "hide": False,
        "iconColor": "blue",
        "expr": shown(WEIGHTS),
        "titleFormat": "new weights",
    }
