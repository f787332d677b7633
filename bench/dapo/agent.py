"""The agent of the workload, as the service runs it: as many turns as `world` says, no sandbox."""

from typing import ClassVar

from bench.dapo import workload
from bench.dapo.workload import End
from bench.nodes.agent import Calls
from prorl_service.agents.base import RolloutContext, Verdict


class WorldAgent(Calls):
    name: ClassVar[str] = workload.AGENT

    def calls(self, rollout: RolloutContext) -> int:
        return self._end(rollout).turns

    async def eval(self, rollout: RolloutContext) -> Verdict:
        return Verdict(self._end(rollout).reward)

    def _end(self, rollout: RolloutContext) -> End:
        return workload.end(int(str(self.task.data["seed"])), rollout.rollout_id)
