"""Metrics that VeRL logs of the rollouts that ended since it last logged; those of validation are
under `val-prorl/`.

VeRL takes metrics only from its samplers, and discards theirs of validation; so its `Tracking.log`
is wrapped.
"""

from collections.abc import Callable, Iterable
from functools import wraps
from threading import Lock
from typing import Any, Literal

from verl.utils.tracking import Tracking

from prorl_service.client.metrics import Outcome, metrics

Partition = Literal["train", "val"]
PREFIXES: dict[Partition, str] = {"train": "", "val": "val-"}


class Measurements:
    """Metrics of rollouts since they were last taken. Threads may share one."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._outcomes: dict[Partition, list[Outcome]] = {"train": [], "val": []}
        self._newest_version: dict[Partition, int] = {}

    def add(
        self, partition: Partition, outcomes: Iterable[Outcome], *, newest_version: int
    ) -> None:
        """Adds outcomes. `newest_version`: that of the weights that have sampled by now."""
        with self._lock:
            self._outcomes[partition].extend(outcomes)
            self._newest_version[partition] = newest_version

    def take(self) -> dict[str, float]:
        """Returns metrics, in which each outcome counts once."""
        with self._lock:
            taken, self._outcomes = self._outcomes, {"train": [], "val": []}
        return {
            PREFIXES[partition] + name: value
            for partition, outcomes in taken.items()
            if outcomes
            for name, value in metrics(outcomes, self._newest_version[partition]).items()
        }


def add_to_log(
    more: Callable[[], dict[str, float]], report: Callable[[int, dict[str, Any]], None]
) -> None:
    """Adds `more` to everything that this process logs from now on; `report` gets the step and all
    that is logged of it."""
    log = Tracking.log

    @wraps(log)
    def log_with_more(self: Any, data: dict[str, Any], step: int, backend: Any = None) -> None:
        data = {**data, **more()}
        log(self, data=data, step=step, backend=backend)
        report(step, data)

    Tracking.log = log_with_more
