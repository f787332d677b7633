"""An agent that fails as its task says, and says what its task says."""

import asyncio
from typing import Any, ClassVar

from prorl_service.agents.base import RolloutContext, Verdict
from prorl_service.errors import (
    AgentError,
    BackendRejected,
    EvaluatorError,
    ProRLError,
    SandboxError,
    TaskError,
)
from prorl_service.schemas import (
    Blame,
    FinishReason,
    Group,
    Message,
    Stage,
    Task,
    ToolCallRecord,
)
from tests.agents.bare_agent import BareAgent

TELLING = "tests.traces.agents:Telling"

ERRORS: dict[Blame, type[ProRLError]] = {
    Blame.TASK: TaskError,
    Blame.AGENT: AgentError,
    Blame.SANDBOX: SandboxError,
    Blame.BACKEND: BackendRejected,
    Blame.EVALUATOR: EvaluatorError,
    Blame.SERVICE: ProRLError,
}


class Telling(BareAgent):
    """`data`: `fails_in`, a stage; `blame`; `call`, a record of a tool call; `sleep`, seconds;
    `report`."""

    name: ClassVar[str] = "telling"

    async def init(self, rollout: RolloutContext) -> None:
        self._fail_in(Stage.INIT)

    async def run(self, rollout: RolloutContext) -> FinishReason:
        data: dict[str, Any] = self.task.data
        turn = await rollout.sample(rollout.prompt_ids)
        if "call" in data:
            turn.tool_calls.append(ToolCallRecord.model_validate(data["call"]))
        await asyncio.sleep(data.get("sleep", 0))
        self._fail_in(Stage.RUN)
        return FinishReason.FINISHED

    async def eval(self, rollout: RolloutContext) -> Verdict:
        self._fail_in(Stage.EVAL)
        data: dict[str, Any] = self.task.data
        return Verdict(1.0, {"shown": 0.5}, data.get("report"))

    def _fail_in(self, stage: Stage) -> None:
        if self.task.data.get("fails_in") == stage.value:
            blame = Blame(str(self.task.data["blame"]))
            raise ERRORS[blame]("as it \x1b[31mshould", retryable=False)


def telling(name: str, n: int = 1, prompt: str = "Go on.", **data: Any) -> Group:
    messages = [Message(role="user", content=prompt)]
    task = Task(task_id="t", agent=Telling.name, messages=messages, data=data)
    return Group(group_id=name, task=task, n=n)
