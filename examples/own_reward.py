"""A reward of your own: that of the math agent, less a little for each token sampled.

prorl try examples/own_reward.py:ShortMath --engine http://localhost:8000 --task '{
    "messages": [{"role": "user", "content": "What is 17 times 3?"}],
    "data": {"answer": "51"}}'
prorl serve --agent examples.own_reward:ShortMath --backend http://localhost:8000
"""

from typing import ClassVar

from prorl_service.agents.base import RolloutContext, Verdict
from prorl_service.agents.math import MathAgent

PRICE = 1e-4
"""Reward that a token costs."""


class ShortMath(MathAgent):
    name: ClassVar[str] = "short_math"

    async def eval(self, rollout: RolloutContext) -> Verdict:
        verdict = await super().eval(rollout)
        tokens = sum(turn.stop - turn.start for turn in rollout.turns)
        components = {**verdict.components, "tokens": float(tokens)}
        return Verdict(verdict.reward - PRICE * tokens, components)
