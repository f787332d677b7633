"""The rows: each takes one optimisation away, and is compared with a row that has all.

Load balancing shows where engines differ, so it has a base of its own with one slow engine. What
belongs to the client (`surplus`) or to a tool (bash) is set there, the rest in the process of the
service (`service`).
"""

from dataclasses import dataclass
from typing import Literal

SLOWNESS = 3.0
"""Factor of the slow engine's times."""

ALL, ALL_SLOW = "all", "all, one engine slow"


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    switches: tuple[str, ...] = ()
    """Parts of the service that are replaced; see `service`."""
    base: str = ALL
    """Row that it is compared with."""
    surplus: Literal["carry", "cancel"] = "carry"
    warm_sandboxes: int = 8
    has_tmux: bool = False
    paper: float | None = None
    """Ratio of instances per second in ProRL Agent's table."""

    @property
    def slowness(self) -> float:
        return SLOWNESS if self.base == ALL_SLOW else 1.0


BALANCING = "no load balancing (min-heap)"
BALANCING_EQUAL = "no load balancing, engines equal"
BASH = "no efficient bash (tmux)"
CLEANUP = "no cleanup of surplus"
ROWS = (
    Row(ALL_SLOW, base=ALL_SLOW),
    Row(BALANCING, ("routing=min-heap",), ALL_SLOW, paper=0.68),
    Row("consistent hash", ("routing=hash",), ALL_SLOW),
    Row("random engine", ("routing=random",), ALL_SLOW),
    Row(ALL),
    Row(BALANCING_EQUAL, ("routing=min-heap",)),
    Row("not sticky (no prefix cache)", ("routing=not-sticky",)),
    Row(BASH, has_tmux=True, paper=0.78),
    Row("no warm sandboxes", warm_sandboxes=0),
    Row("no stage pipeline", ("pipeline=serial",)),
    Row("surplus cancelled, not carried over", surplus="cancel"),
    Row(CLEANUP, ("sampler=no-cleanup",), surplus="cancel", paper=0.81),
    Row("no early verdicts", ("sampler=no-early-verdict",)),
    Row(
        "none of them",
        ("routing=min-heap", "pipeline=serial", "sampler=no-cleanup", "sampler=no-early-verdict"),
        ALL_SLOW,
        surplus="cancel",
        warm_sandboxes=0,
        has_tmux=True,
    ),
)
QUICK = tuple(row for row in ROWS if row.name in (ALL_SLOW, BALANCING, ALL, BASH, CLEANUP))
"""Rows whose sign and order are checked: those of the paper."""
