"""A rollout to be exported, with its task."""

from dataclasses import dataclass

from prorl_service.schemas import Rollout, Task


@dataclass(frozen=True, slots=True)
class Record:
    rollout: Rollout
    task: Task | None = None
    """The rollout's task; None if the source has only rollouts."""
