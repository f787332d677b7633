"""What a rollout that runs has sampled so far, for people who look at it.

Cheap to make: it is asked for in the event loop. Text and token lists are made of a copy, which a
thread may do.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from prorl_service.schemas import (
    Figures,
    FinishReason,
    Sampling,
    Trajectory,
    Turn,
    logprobs_mode_of,
)
from prorl_service.tokens.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Progress:
    turns: Sequence[Turn]
    ledger: Ledger
    sampling: Sampling

    def figures(self) -> Figures:
        return Figures(
            turns=len(self.turns),
            sampled_tokens=sum(turn.stop - turn.start for turn in self.turns),
            segments=len(self.ledger.chains),
            model_s=sum(turn.model_s for turn in self.turns),
            tool_s=sum(call.duration_s for turn in self.turns for call in turn.tool_calls),
        )

    def copy(self) -> Self:
        """One that does not change any more. Arrays are copied as bytes, texts not at all."""
        turns = [
            turn.model_copy(update={"tool_calls": list(turn.tool_calls)}) for turn in self.turns
        ]
        return type(self)(turns, copy.deepcopy(self.ledger), self.sampling)

    def trajectory(self) -> Trajectory:
        """`finish_reason` has no meaning yet."""
        return Trajectory(
            segments=self.ledger.to_segments(),
            turns=list(self.turns),
            finish_reason=FinishReason.ERROR,
            sampling=self.sampling,
            logprobs_mode=logprobs_mode_of(self.turns),
        )
