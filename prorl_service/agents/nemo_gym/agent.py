"""The agent that runs tasks of NeMo Gym's resources servers, in the place of NeMo Gym's own agent.

The server has the tools and the verifier, one of NeMo Gym's rows is the task. INIT begins a
session, RUN is the loop with the row's tools, EVAL gives the conversation to the verifier. A server
that is away fails the rollout, which is then never scored.
"""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from prorl_service.agents.base import AgentHandler, Prompt, RolloutContext, Verdict
from prorl_service.agents.loop import run_turns
from prorl_service.agents.nemo_gym.response import Step, response
from prorl_service.agents.nemo_gym.verdict import verdict_of
from prorl_service.agents.services import Requirements
from prorl_service.client.nemo_gym import AGENT, PARAMETERS, messages_of, tools_of
from prorl_service.errors import InvalidRequest
from prorl_service.schemas import FinishReason, Message, Stage, Task
from prorl_service.tokens.formats import Reply, ToolSchema
from prorl_service.tools.base import Toolset, function_schema
from prorl_service.tools.nemo_gym.servers import NemoGymSession, tools

STAGE_SHARE = 0.9
"""Share of a stage's budget for the server, so that the server is blamed if it hangs."""


class NemoGymData(BaseModel):
    """`task.data` of this agent."""

    model_config = ConfigDict(extra="forbid")

    server: str = Field(description="Name of a NeMo Gym server, as the operator gave it.")
    row: dict[str, JsonValue] = Field(
        description="The row of the server's data set, whole: `responses_create_params` and what "
        "the server's session and verifier need."
    )

    @property
    def tools(self) -> list[dict[str, Any]]:
        """Tools of the row. Raises `InvalidRequest`."""
        return tools_of(self.row)

    def messages(self, given: list[Message]) -> list[Message]:
        """Returns the row's conversation. Raises `InvalidRequest` if the task's own messages say
        anything else: the verifier would judge another conversation than the model had."""
        messages = messages_of(self.row)
        if _said(messages) != _said(given):
            raise InvalidRequest.of_field(
                "messages",
                "they differ from data.row.responses_create_params",
                hint="make the task by prorl_service.client.nemo_gym.task_of, and change the row "
                "before",
            )
        return messages


class NemoGymAgent(AgentHandler):
    """Runs a row of a NeMo Gym data set: the resources server named in `data.server` has its tools
    and its verifier."""

    name: ClassVar[str] = AGENT
    sandbox_stages: ClassVar[frozenset[Stage]] = frozenset()
    data_model: ClassVar[type[BaseModel] | None] = NemoGymData

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.data = NemoGymData.model_validate(task.data)
        self.uses = Requirements(nemo_gym=self.data.server)
        self._messages = self.data.messages(task.messages)
        self._offered = self.data.tools
        self._session: NemoGymSession | None = None

    @property
    def _schemas(self) -> list[ToolSchema]:
        return [function_schema(tool) for tool in tools(self._offered)]

    def prompt(self) -> Prompt:
        return Prompt(self._messages, self._schemas)

    async def init(self, rollout: RolloutContext) -> None:
        server = rollout.services.nemo_gym[self.data.server]
        timeout_s = STAGE_SHARE * rollout.limits.init_timeout_s
        self._session = await server.seed(self.data.row, timeout_s=timeout_s)

    async def run(self, rollout: RolloutContext) -> FinishReason:
        offered = tools(self._offered, self._session)
        toolset = Toolset(offered, None, timeout_s=rollout.limits.tool_timeout_s)
        return await run_turns(rollout, toolset)

    async def eval(self, rollout: RolloutContext) -> Verdict:
        assert self._session is not None
        parameters: Any = self.data.row[PARAMETERS]
        answer = response(
            self._steps(rollout), parameters, rollout_id=rollout.rollout_id, model="policy"
        )
        timeout_s = STAGE_SHARE * rollout.limits.eval_timeout_s
        told = await self._session.verify(
            {**self.data.row, "response": answer}, timeout_s=timeout_s
        )
        return verdict_of(told, self.data.row, server=self.data.server)

    def _steps(self, rollout: RolloutContext) -> list[Step]:
        schemas = self._schemas
        steps = []
        for turn in rollout.turns:
            reply = rollout.reply(turn, schemas)
            if reply.problem is not None and not reply.reasoning:
                reply = Reply(turn.text)
            prompt_tokens = len(rollout.attempt.ledger.before(turn.segment, turn.start))
            steps.append(Step(turn, reply, prompt_tokens))
        return steps


def _said(messages: list[Message]) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in messages]
