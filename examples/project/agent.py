"""The agent: the model asks a ledger through a tool of its own, and answers with a name."""

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field

from prorl_service.agents.base import AgentHandler, Prompt, Restores, RolloutContext, Verdict
from prorl_service.agents.loop import run_turns
from prorl_service.sandbox.base import Sandbox, ToolResult
from prorl_service.schemas import FinishReason, Message, Task
from prorl_service.tools.base import Tool, Toolset, function_schema

COMMANDS = {
    "most": "sort -n ledger.txt | tail -n 1",
    "least": "sort -n ledger.txt | head -n 1",
    "first": "head -n 1 ledger.txt",
    "last": "tail -n 1 ledger.txt",
}


class Query(BaseModel):  # a docstring would be the model's, too
    find: Literal["most", "least", "first", "last"]


class Ledger:
    """The tool: a command in the rollout's sandbox."""

    name = "ledger"
    description = "Look up who paid."
    arguments = Query
    may_repeat = True  # it has effects in the sandbox alone

    async def call(self, sandbox: Sandbox, arguments: Query, *, timeout_s: float) -> ToolResult:
        command = {"command": f"{COMMANDS[arguments.find]} | cut -d ' ' -f 2"}
        return await sandbox.call_tool("bash", command, timeout_s=timeout_s)


class LedgerData(BaseModel, extra="forbid"):
    """The `data` of a task, which the model does not see."""

    payments: list[tuple[str, int]] = Field(min_length=1)
    answer: str


class LedgerAgent(AgentHandler):
    name: ClassVar[str] = "ledger"  # tasks choose by it
    data_model: ClassVar[type[BaseModel] | None] = LedgerData
    offers: ClassVar[tuple[Tool, ...]] = (Ledger(),)
    restores: ClassVar[Restores] = "sandbox"  # a rollout continues after a restart of the service

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.data = LedgerData.model_validate(task.data)

    def prompt(self) -> Prompt:
        system = Message(role="system", content="Use the tool, then answer with its result.")
        tools = [function_schema(tool) for tool in self.offers]
        return Prompt([system, *self.task.messages], tools)

    def solved_by(self, given: Any) -> list[str | Message]:
        """The replies that solve a task, for `prorl check`. `given`: the row's `solution`."""
        return [Message.calling(Ledger.name, find=given), self.data.answer]

    async def init(self, rollout: RolloutContext) -> None:
        self.sandbox = await rollout.open_sandbox()
        ledger = "".join(f"{paid} {who}\n" for who, paid in self.data.payments)
        await self.sandbox.upload("ledger.txt", ledger.encode())

    async def run(self, rollout: RolloutContext) -> FinishReason:
        tools = Toolset(self.offers, self.sandbox, timeout_s=rollout.limits.tool_timeout_s)
        return await run_turns(rollout, tools)

    async def eval(self, rollout: RolloutContext) -> Verdict:
        said = rollout.answer.strip()
        return Verdict(float(said == self.data.answer), report={"said": said})
