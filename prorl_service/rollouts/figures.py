"""What a trajectory comes to in numbers, without its tokens: for lists and statistics.

Counted where the trajectory is at hand, so that nobody has to read a whole one for a list of them.
"""

from dataclasses import dataclass
from typing import Self

from prorl_service.schemas import FinishReason, Trajectory


@dataclass(frozen=True, slots=True)
class Figures:
    """All zero if nothing was sampled."""

    finish_reason: FinishReason | None = None
    turns: int = 0
    sampled_tokens: int = 0
    segments: int = 0
    model_s: float = 0.0
    tool_s: float = 0.0

    @classmethod
    def of(cls, trajectory: Trajectory | None) -> Self:
        if trajectory is None:
            return cls()
        turns = trajectory.turns
        return cls(
            finish_reason=trajectory.finish_reason,
            turns=len(turns),
            sampled_tokens=sum(turn.stop - turn.start for turn in turns),
            segments=len(trajectory.segments),
            model_s=sum(turn.model_s for turn in turns),
            tool_s=sum(call.duration_s for turn in turns for call in turn.tool_calls),
        )
