"""Sizes and rules of the pipeline, as an operator sets them."""

from typing import Literal

from pydantic import NonNegativeFloat, PositiveInt
from pydantic.dataclasses import dataclass

OnTimeout = Literal["grade", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig:
    init_workers: PositiveInt = 8
    """Workers of INIT, which prepares sandboxes."""
    run_workers: PositiveInt = 64
    """Workers of RUN: rollouts that sample at the same time."""
    eval_workers: PositiveInt = 8
    """Workers of EVAL, which scores."""
    ready_rollouts: PositiveInt = 8
    """Rollouts that INIT may finish ahead of RUN; each holds a sandbox."""
    max_attempts: PositiveInt = 3
    """Most attempts of a rollout: it is retried after a failure that a retry may mend, and after
    the service's process died. Attempts before its last kept turn do not count."""
    on_timeout: OnTimeout = "grade"
    """Fate of a rollout that used up RUN's budget by its own work: graded like one that ran out of
    turns, or failed."""
    save_every_s: NonNegativeFloat = 10.0
    """Fewest seconds between two savings of a rollout's sandbox, from which it continues
    after the service's process died. A large one is saved less often, 10 MB a
    second on average. A drain saves all of them."""
