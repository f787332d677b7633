"""The agent that serves a simulated user: it asks, looks up records, and changes them by tools.

A reply without a tool call goes to the user, whose next message is part of the prompt, and masked
like a tool's result. The rollout ends when the user ends it. It is scored by the records alone:
they must be those that the task's goal asks for, whatever was said.
"""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter

from prorl_service.agents.base import (
    AgentHandler,
    Prompt,
    Restores,
    RolloutContext,
    Verdict,
    with_system,
)
from prorl_service.agents.dialogue import records
from prorl_service.agents.dialogue.records import Changes, Tables
from prorl_service.agents.dialogue.user import PROMPTS, next_message
from prorl_service.agents.loop import run_turns
from prorl_service.agents.services import Requirements
from prorl_service.errors import InvalidRequest
from prorl_service.schemas import FinishReason, Message, Stage, Task
from prorl_service.tools.base import Toolset, function_schema

TABLES = TypeAdapter(Tables)
SAID = TypeAdapter(list[tuple[str, str]])
MOST_REPORTED = 100
"""Most changed records in a report, which is bounded and names no values."""


class SimulatedUserData(BaseModel):
    """The person whom the model of `--user-url` plays."""

    model_config = ConfigDict(extra="forbid")

    persona: str = Field(min_length=1, description="Who the user is.")
    goal: str = Field(min_length=1, description="What the user wants and knows.")


class DialogueData(BaseModel):
    """`task.data` of this agent. The user's first words are the last of the task's messages."""

    model_config = ConfigDict(extra="forbid")

    user: SimulatedUserData
    records: Tables = Field(description="Records before, by table and id.")
    changes: Changes = Field(
        {},
        description="Changes that solve the task: new values by table, id and field, null for a "
        "record that is removed. Empty: nothing may be changed.",
    )
    max_user_messages: int = Field(
        10, ge=1, le=100, description="Most messages of the user, after the first words."
    )


class DialogueAgent(AgentHandler):
    name: ClassVar[str] = "dialogue"
    sandbox_stages: ClassVar[frozenset[Stage]] = frozenset()
    data_model: ClassVar[type[BaseModel] | None] = DialogueData
    restores: ClassVar[Restores] = "conversation"
    offers: ClassVar = [tool({}) for tool in records.TOOLS]
    uses = Requirements(user=True)

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.data = DialogueData.model_validate(task.data)
        if task.messages[-1].role != "user":
            raise InvalidRequest.of_field("messages", "the last one must be the user's first words")
        try:
            self._wanted = records.changed(self.data.records, self.data.changes)
        except KeyError as error:
            raise InvalidRequest.of_field(
                "data.changes", f"there is no {error.args[0]!r} in data.records"
            ) from None
        self._tables = records.changed(self.data.records, {})
        self._said: list[tuple[str, str]] = []
        self._heard = task.messages[-1].content
        """The user's last message."""
        self._has_ended = False

    def prompt(self) -> Prompt:
        messages = with_system(PROMPTS["agent"].strip(), self.task.messages)
        return Prompt(messages, [function_schema(tool) for tool in self.offers])

    def state(self) -> JsonValue:
        return {
            "tables": TABLES.dump_python(self._tables, mode="json"),
            "said": SAID.dump_python(self._said, mode="json"),
            "heard": self._heard,
        }

    def restore(self, state: Any) -> None:
        self._tables = TABLES.validate_python(state["tables"])
        self._said = SAID.validate_python([tuple(pair) for pair in state["said"]])
        self._heard = state["heard"]

    async def init(self, rollout: RolloutContext) -> None:
        """Nothing to prepare: the records are in the task."""

    async def run(self, rollout: RolloutContext) -> FinishReason:
        rollout.attempt.resumed_note = ""  # the records are as they were before the last turn
        tools = [tool(self._tables) for tool in records.TOOLS]
        toolset = Toolset(tools, None, timeout_s=rollout.limits.tool_timeout_s)
        return await run_turns(rollout, toolset, self)

    async def answer(self, rollout: RolloutContext, said: str) -> Message | FinishReason:
        """Returns the user's answer, or why there is none. Raises `EvaluatorError`."""
        self._said.append((self._heard, said or "..."))
        if len(self._said) > self.data.max_user_messages:
            return FinishReason.MAX_TURNS
        user = self.data.user
        assert rollout.services.user is not None, "checked at submission"
        with rollout.attempt.clock.waiting():
            heard = await next_message(rollout.services.user, user.persona, user.goal, self._said)
        if heard is None:
            self._has_ended = True
            return FinishReason.FINISHED
        self._heard = heard
        return Message(role="user", content=heard)

    async def eval(self, rollout: RolloutContext) -> Verdict:
        reached = float(records.are_equal(self._tables, self._wanted))
        return Verdict(
            reached,
            {
                "goal_reached": reached,
                "ended_by_user": float(self._has_ended),
                "user_messages": float(len(self._said)),
                "untouched": float(records.are_equal(self._tables, self.data.records)),
            },
            {"changed": [*records.different(self.data.records, self._tables)[:MOST_REPORTED]]},
        )
