"""The agent that runs another agent's program, a harness, unmodified, in the rollout's sandbox.

The program believes that it talks to OpenAI or Anthropic; what answers is the policy, by the
gateway. After a restart of the service the program starts again, and gets the replies that it had.
Another agent prepares the sandbox before and grades after it, just as after its own turns:
`HarnessTurns` only takes the place of its loop.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Self

from pydantic import BaseModel

from prorl_service.agents.base import AgentHandler, Prompt, Restores, RolloutContext, Verdict
from prorl_service.agents.harness.data import HarnessData
from prorl_service.agents.harness.turns import HarnessTurns
from prorl_service.agents.loop import LoopAgent
from prorl_service.errors import InvalidRequest
from prorl_service.schemas import FinishReason, Message, Stage, Task


class HarnessAgent(AgentHandler):
    """Runs an agent's own program, such as Claude Code, against the policy; another agent grades.

    `task.data.harness` names a preset, `task.data.agent` the agent that grades, with its own data
    in `task.data.data`.
    """

    name: ClassVar[str] = "harness"
    restores: ClassVar[Restores] = "replay"
    sandbox_stages: ClassVar[frozenset[Stage]] = frozenset({Stage.INIT, Stage.EVAL})
    data_model: ClassVar[type[BaseModel] | None] = HarnessData

    def __init__(self, task: Task, agents: Mapping[str, type[AgentHandler]]) -> None:
        super().__init__(task)
        self.data = HarnessData.model_validate(task.data)
        self.grader = self._grader(agents)
        self.uses = self.grader.uses
        self._turns = self.grader.taker = HarnessTurns(self.data)

    @classmethod
    def create(cls, task: Task, agents: Mapping[str, type[AgentHandler]]) -> Self:
        return cls(task, agents)

    def _grader(self, agents: Mapping[str, type[AgentHandler]]) -> LoopAgent:
        """Raises `InvalidRequest`."""
        found = agents.get(self.data.agent)
        if found is None or not issubclass(found, LoopAgent):
            usable = [name for name, one in agents.items() if issubclass(one, LoopAgent)]
            raise InvalidRequest(
                f"data.agent: a harness cannot run as {self.data.agent!r}",
                hint=f"name one of {', '.join(sorted(usable))}",
            )
        grader = found(self.task.model_copy(update={"agent": found.name, "data": self.data.data}))
        if grader.uses.mcp:
            raise InvalidRequest("data.data.mcp: a harness is not told of MCP servers")
        return grader

    def check_host(self) -> None:
        self._turns.program.find()

    def prompt(self) -> Prompt:
        """Returns the task as the program gets it; its own first prompt is known only to it."""
        return Prompt([Message(role="user", content=self.grader.brief())])

    async def init(self, rollout: RolloutContext) -> None:
        self._turns.program.find()
        await self.grader.init(rollout)

    async def run(self, rollout: RolloutContext) -> FinishReason:
        return await self.grader.run(rollout)

    async def eval(self, rollout: RolloutContext) -> Verdict:
        verdict = await self.grader.eval(rollout)
        figures = {f"harness_{name}": value for name, value in self._turns.figures.items()}
        return replace(
            verdict,
            components={**verdict.components, **figures},
            report={**(verdict.report or {}), "harness": self._turns.report()},
        )
