"""`task.data` of the agent `nemo_gym`."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from prorl_service.client.nemo_gym import messages_of, tools_of
from prorl_service.errors import InvalidRequest
from prorl_service.schemas import Message


class NemoGymData(BaseModel):
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


def _said(messages: list[Message]) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in messages]
