"""DAPO's treatment of rollouts that are too long (arXiv 2503.14476, section 3.4), for trainers.

The original counts all tokens of a response. In an agent's rollout many of them are tool output,
which the policy did not choose: only sampled tokens count here.
"""

from dataclasses import dataclass

from prorl_service.schemas import Trajectory


@dataclass(frozen=True, slots=True)
class SoftPunishment:
    """Penalty: 0 to `max_tokens` - `buffer_tokens` sampled tokens, then down to -1 at `max_tokens`.

    The trainer adds it to the reward, so that a sampler's filter sees the reward without it.
    """

    max_tokens: int
    buffer_tokens: int

    def __post_init__(self) -> None:
        if not 0 < self.buffer_tokens <= self.max_tokens:
            raise ValueError(
                f"buffer_tokens={self.buffer_tokens} must be above 0 and at most "
                f"max_tokens={self.max_tokens}"
            )

    def of(self, trajectory: Trajectory) -> float:
        sampled = sum(sum(segment.loss_mask) for segment in trajectory.segments)
        excess = sampled - (self.max_tokens - self.buffer_tokens)
        return -min(1.0, max(0.0, excess / self.buffer_tokens))
