"""A rollout to be exported, with what is known beside it."""

from dataclasses import dataclass

from prorl_service.schemas import Rollout, Task


@dataclass(frozen=True, slots=True)
class Record:
    rollout: Rollout
    task: Task | None = None
    """None if the source has rollouts alone."""
