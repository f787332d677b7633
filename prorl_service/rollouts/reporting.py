"""Log lines about ended rollouts: one per group, and a warning per failed rollout.

Warnings are limited to `MAX_WARNINGS` in `WINDOW_S`, since an engine that is down fails rollouts by
the hundred; the next warning says how many were left out. `metrics` counts for Prometheus.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence

from prorl_service.rollouts.record import RolloutRecord
from prorl_service.schemas import Rollout, RolloutState
from prorl_service.schemas.numbers import mean_of

log = logging.getLogger(__name__)

MAX_WARNINGS = 10
WINDOW_S = 10.0


class EndReports:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._window_began = clock()
        self._warned = self._left_out = 0

    def rollout_ended(self, rollout: Rollout) -> None:
        error = rollout.error
        if rollout.state is not RolloutState.FAILED or error is None or not self._may_warn():
            return
        stage = f" in {error.stage.value.upper()}" if error.stage else ""
        more = f" ({self._left_out} more since the last such line)" if self._left_out else ""
        self._left_out = 0
        text = "rollout %s failed%s, blame %s: %s%s"
        log.warning(text, rollout.rollout_id, stage, error.blame.value, error.message, more)

    def _may_warn(self) -> bool:
        now = self._clock()
        if now > self._window_began + WINDOW_S:
            self._window_began, self._warned = now, 0
        self._warned += 1
        if self._warned > MAX_WARNINGS:
            self._left_out += 1
        return self._warned <= MAX_WARNINGS


def group_ended(records: Sequence[RolloutRecord]) -> None:
    """Logs the end of a group. `records`: all its rollouts that have ended in this process."""
    if not log.isEnabledFor(logging.INFO):
        return
    rollouts = [record.to_wire() for record in records]
    counts = Counter(rollout.state.value for rollout in rollouts)
    parts = [", ".join(f"{count} {state}" for state, count in sorted(counts.items()))]
    if rewards := [one.reward for one in rollouts if one.reward is not None]:
        mean = mean_of(rewards)
        parts.append(f"reward {min(rewards):.2f} to {max(rewards):.2f} (mean {mean:.2f})")
    parts.append(f"{sum(record.turns for record in records) / len(records):.1f} turns")
    parts.append(f"{max(_seconds(rollout) for rollout in rollouts):.1f} s")
    log.info("group %s: %s", records[0].group.group_id, ", ".join(parts))


def _seconds(rollout: Rollout) -> float:
    timings = rollout.timings
    return timings.init_s + timings.run_s + timings.eval_s
