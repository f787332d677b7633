"""The type of a panel, and queries that many panels share.

`HERE` in a query stands for the instances selected in the dashboard.
"""

from dataclasses import dataclass
from typing import Literal

ACTIVE = 'state=~"queued|init|ready|running|evaluating"'
"""Label matcher for rollouts that were accepted and have not ended."""
KEPT = 'state=~"done|failed|cancelled"'
RATE = "$__rate_interval"

Kind = Literal["timeseries", "stat"]
Unit = Literal["short", "s", "percentunit", "bytes", "ops", "reqps", "none", "bool_yes_no"]


@dataclass(frozen=True, slots=True)
class Query:
    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    title: str
    queries: tuple[Query, ...]
    description: str
    unit: Unit = "short"
    kind: Kind = "timeseries"
    width: int = 8
    """Width in columns, of 24."""
    is_stacked: bool = False
    is_share: bool = False
    """True if the axis ends at 1."""
    steps: tuple[tuple[str, float], ...] = ()
    """Colours and the values from which they apply; the first applies below all. Empty: green."""


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


def quantiles(metric: str, by: str = "") -> tuple[Query, ...]:
    """Returns queries for the median and 95th percentile of a histogram."""
    grouped = f"le, {by}" if by else "le"
    prefix = f"{{{{{by}}}}} " if by else ""
    rate = f"sum by ({grouped}) (rate({metric}_bucket{{HERE}}[{RATE}]))"
    return tuple(
        Query(f"histogram_quantile({share}, {rate})", f"{prefix}{name}")
        for share, name in ((0.5, "p50"), (0.95, "p95"))
    )


def per_second(metric: str, legend: str, by: str = "") -> Query:
    grouped = f" by ({by})" if by else ""
    return Query(f"sum{grouped} (rate({metric}{{HERE}}[{RATE}]))", legend)


def per_minute(metric: str, by: str) -> Query:
    return Query(f"60 * sum by ({by}) (rate({metric}{{HERE}}[{RATE}]))", f"{{{{{by}}}}}")


def now(metric: str, by: str, labels: str = "") -> Query:
    return Query(f"sum by ({by}) ({metric}{{HERE{labels}}})", f"{{{{{by}}}}}")
