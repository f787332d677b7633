"""An agent whose task says its scores and durations: one model call, no sandbox."""

import asyncio
from typing import ClassVar

from prorl_service.agents.base import RolloutContext, Verdict
from prorl_service.errors import EvaluatorError
from prorl_service.schemas import FinishReason, Group
from tests import builders
from tests.agents.bare_agent import BareAgent

SCORED = "tests.server.scored_agent:Scored"


class Scored(BareAgent):
    """An agent that follows the lists `scores` and `sleep` in `data`, by the rollout's index.

    A score of None makes the rollout fail; `sleep` is in seconds.
    """

    name: ClassVar[str] = "scored"

    async def run(self, rollout: RolloutContext) -> FinishReason:
        await asyncio.sleep(self._own(rollout, "sleep", 0.0) or 0.0)
        await rollout.sample(rollout.prompt_ids)
        return FinishReason.FINISHED

    async def eval(self, rollout: RolloutContext) -> Verdict:
        score = self._own(rollout, "scores", None)
        if score is None:
            raise EvaluatorError("it fails, as it should")
        return Verdict(score)

    def _own(self, rollout: RolloutContext, key: str, default: float | None) -> float | None:
        values = self.task.data.get(key, [])
        assert isinstance(values, list)
        index = int(rollout.rollout_id.rpartition(".")[2])
        value = values[index] if index < len(values) else default
        assert value is None or isinstance(value, int | float)
        return value


def scored(name: str, *scores: float | None, sleep: float = 0.0, task_id: str = "t") -> Group:
    data = {"scores": list(scores), "sleep": [sleep] * len(scores)}
    task = builders.task(task_id, "Go on.", agent=Scored.name, data=data)
    return Group(group_id=name, task=task, n=len(scores))
