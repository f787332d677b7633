"""Types that a trainer submits: groups of rollouts of one task."""

import base64
import binascii
import json
import re
from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    field_validator,
    model_validator,
)

from prorl_service.schemas.base import (
    MAX_CHECKS_PER_REQUEST,
    MAX_GROUP_SIZE,
    MAX_IDS_PER_REQUEST,
    MAX_INT32,
    MAX_LEASE_S,
    MAX_MESSAGES,
    MAX_ROLLOUTS_PER_REQUEST,
    GroupId,
    Id,
    Text,
    WireModel,
    encodable_json,
)
from prorl_service.schemas.pictures import parts_of
from prorl_service.schemas.rollouts import Sampling, Trajectory
from prorl_service.schemas.tracing import Traceparent

_DATA_URL = re.compile(r"data:image/(?:png|jpeg);base64,(.*)", re.DOTALL)


def _base64(text: str) -> str:
    try:
        base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"it is no base64: {error}") from None
    return text


def _of_parts(parts: Sequence[Any]) -> dict[str, Any]:
    """Returns content and pictures of a message in parts. Raises `ValueError`."""
    content, pictures = "", []
    for number, part in enumerate(parts):
        match part:
            case {"type": "text", "text": str(text)}:
                content += text
            case {"type": "image_url", "image_url": {"url": str(url)}}:
                if (data := _DATA_URL.fullmatch(url)) is None:
                    raise ValueError(f"part {number}: give the picture as data:image/png;base64,…")
                pictures.append({"at": len(content), "data": data[1]})
            case _:
                raise ValueError(f"part {number} is neither a text nor an image_url")
    return {"content": content, "pictures": pictures}


def _arguments(value: Any) -> Any:
    """Parses arguments, which OpenAI's clients send as JSON text."""
    return json.loads(value) if isinstance(value, str) else value


class FunctionCall(WireModel):
    name: Text
    arguments: Annotated[
        dict[str, JsonValue], BeforeValidator(_arguments), AfterValidator(encodable_json)
    ] = Field(default_factory=dict, description="An object, or JSON text of one.")


class MessageCall(WireModel):
    """A tool call that an assistant's message holds, in OpenAI's form."""

    id: Text
    type: Literal["function"] = "function"
    function: FunctionCall


class Picture(WireModel):
    """A picture in a message."""

    at: int = Field(0, ge=0, description="Number of characters of the content before it.")
    data: Annotated[str, AfterValidator(_base64)] = Field(
        repr=False, description="A PNG or JPEG file of mode RGB, in base64."
    )

    @property
    def content(self) -> bytes:
        return base64.b64decode(self.data)


class Message(WireModel):
    """One message of a conversation, in OpenAI's form. A content of parts is taken, too: `text`,
    and `image_url` with the picture itself, as a `data:` URL."""

    role: Literal["system", "user", "assistant", "tool"]
    content: Annotated[Text, BeforeValidator(lambda text: "" if text is None else text)]
    pictures: list[Picture] = Field(
        default_factory=list,
        description="Pictures in the content, in their order.",
        exclude_if=lambda value: not value,
    )
    reasoning_content: Text | None = Field(
        None, description="The assistant's reasoning; templates drop it once a question follows."
    )
    tool_calls: list[MessageCall] = Field(default_factory=list)
    tool_call_id: Text | None = Field(None, description="Id of the call that a tool answers.")
    name: Text | None = Field(None, description="Name of the tool that answers.")

    @classmethod
    def calling(cls, name: str, /, **arguments: JsonValue) -> Self:
        """Returns a message of the assistant that calls one tool."""
        function = FunctionCall(name=name, arguments=arguments)
        call = MessageCall(id="call00000", function=function)
        return cls(role="assistant", content="", tool_calls=[call])

    @classmethod
    def written(cls, value: JsonValue) -> Self:
        """Returns a reply that a person wrote, who may leave out its role, an empty content, and
        the ids of calls. Raises `ValidationError`, and `ValueError` for another role than the
        assistant's."""
        if isinstance(value, dict):
            value = {"role": "assistant", "content": "", **value}
            if isinstance(calls := value.get("tool_calls"), list):
                value["tool_calls"] = [
                    {"id": f"call{place:05}", **one} if isinstance(one, dict) else one
                    for place, one in enumerate(calls)
                ]
        message = cls.model_validate(value)
        if message.role != "assistant":
            raise ValueError(f"a reply is the assistant's, not the {message.role}'s")
        return message

    @property
    def parts(self) -> str | list[dict[str, Any]]:
        """The content as OpenAI has it: text, or parts if there are pictures."""
        places = [0, *(one.at for one in self.pictures), len(self.content)]
        texts = [self.content[start:stop] for start, stop in pairwise(places)]
        return parts_of(texts, [one.content for one in self.pictures])

    @model_validator(mode="before")
    @classmethod
    def _without_parts(cls, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(parts := value.get("content"), list):
            return {**value, **_of_parts(parts)}
        return value

    @model_validator(mode="after")
    def _fits_its_role(self) -> Self:
        if self.role == "assistant" and self.pictures:
            raise ValueError("the assistant's messages have no pictures")
        places = [one.at for one in self.pictures]
        if places != sorted(places) or max(places, default=0) > len(self.content):
            raise ValueError("pictures lie in the content, in their order")
        if self.role != "assistant" and (self.tool_calls or self.reasoning_content is not None):
            raise ValueError("only the assistant's messages have tool_calls and reasoning_content")
        if self.role != "tool" and (self.tool_call_id or self.name):
            raise ValueError("only messages of role `tool` have a tool_call_id and a name")
        return self


class Difficulty(WireModel):
    """The kind of problem that a task is, and its level among those of the kind. Samplers report by
    it, and may choose by it."""

    model_config = ConfigDict(frozen=True)

    kind: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]{0,59}$")]
    level: int = Field(ge=0, le=MAX_INT32, description="Higher levels are harder.")


class Task(WireModel):
    """One problem instance. `data` is the agent's own: answers, files, test names."""

    task_id: Id
    agent: str = Field(description="Name of an agent that the service has registered.")
    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES, repr=False)
    data: Annotated[dict[str, JsonValue], AfterValidator(encodable_json)] = Field(
        default_factory=dict, repr=False
    )
    image: Text | None = Field(None, description="Sandbox image; None takes the service's default.")
    difficulty: Difficulty | None = Field(
        None,
        description="What samplers report results by.",
        exclude_if=lambda value: value is None,
    )
    solution: Annotated[JsonValue, AfterValidator(encodable_json)] = Field(
        None,
        repr=False,
        description="What solves it, for head starts: replies, as texts or messages, or the "
        "agent's own form. The policy sees none of it but what a rollout begins with.",
        exclude_if=lambda value: value is None,
    )


class Limits(WireModel):
    """Budgets of one rollout. They count work only: time in a queue, or waiting for an engine or
    for new weights, is not charged."""

    max_turns: int = Field(16, ge=1, le=10_000)
    max_response_tokens: int | None = Field(
        None, ge=1, description="Tokens after the prompt, tool output included."
    )
    init_timeout_s: float = Field(120, gt=0)
    run_timeout_s: float = Field(900, gt=0)
    eval_timeout_s: float = Field(300, gt=0)
    tool_timeout_s: float = Field(60, gt=0)


class Start(WireModel):
    """Turns with which rollouts begin: the first of another rollout of the task, of the task's
    `solution`, or of given replies.

    The agent begins as always, gets these replies, and makes their calls again, in a sandbox of its
    own; the policy sees the results of then. All of it is masked in the trajectory.
    """

    rollout_id: Id | None = Field(None, description="The other rollout.")
    turns: int | None = Field(
        None, ge=1, le=10_000, description="Number of its turns; another must follow."
    )
    trajectory: Trajectory | None = Field(
        None,
        repr=False,
        description="Its trajectory; null if the service has the rollout, ended or on its shelf.",
        exclude_if=lambda value: value is None,
    )
    share: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Instead of another rollout: share of the solution's turns but the last.",
        exclude_if=lambda value: value is None,
    )
    replies: list[str] | None = Field(
        None,
        min_length=2,
        repr=False,
        description="Texts to take the share of, instead of the task's solution.",
        exclude_if=lambda value: value is None,
    )

    @model_validator(mode="after")
    def _says_which(self) -> Self:
        is_of_rollout = self.rollout_id is not None or self.trajectory is not None
        if is_of_rollout == (self.share is not None) or is_of_rollout != (self.turns is not None):
            raise ValueError("give a `rollout_id` or a `trajectory` with `turns`, or a `share`")
        if self.replies is not None and self.share is None:
            raise ValueError("`replies` need a `share`")
        if self.trajectory is not None and self.turns is not None:
            self._check(self.trajectory, self.turns)
        return self

    def _check(self, trajectory: Trajectory, turns: int) -> None:
        if turns >= len(trajectory.turns):
            count = len(trajectory.turns)
            raise ValueError(f"turns is {turns}, and must be less than its {count} turns")
        lengths = [len(one.response_ids) for one in trajectory.segments]
        for number, turn in enumerate(trajectory.turns):
            is_known = 0 <= turn.segment < len(lengths)
            if not is_known or not 0 <= turn.start <= turn.stop <= lengths[turn.segment]:
                raise ValueError(f"turn {number} lies outside of the trajectory's segments")

    def is_same_as(self, other: "Start | None") -> bool:
        """Returns whether both begin with the same turns, of which one may only know the name."""
        if other is None or self.rollout_id is None:
            return self == other
        return (self.rollout_id, self.turns) == (other.rollout_id, other.turns)


class Group(WireModel):
    """The `n` rollouts of one task. `group_id` makes the submission idempotent."""

    group_id: GroupId
    task: Task
    n: int = Field(1, ge=1, le=MAX_GROUP_SIZE)
    sampling: Sampling = Sampling()
    limits: Limits = Limits()
    priority: int = Field(0, ge=-1000, le=1000, description="Higher priorities begin first.")
    client: Id | None = Field(
        None,
        description="The submitter: the name of the token, if that has one. Within a priority they "
        "take turns; without names, trainings do.",
    )
    lease_s: float | None = Field(
        None,
        gt=0,
        le=MAX_LEASE_S,
        description="Seconds without a request after which it is cancelled; None: never.",
    )
    owner: Id | None = Field(
        None, description="The front that forwards it, which must own the engines; None: any owner."
    )
    training: Id | None = Field(
        None,
        description="The training that it is for, by the header of the request; null: that which "
        "holds the policy. When another takes the policy, the group is cancelled.",
        exclude_if=lambda value: value is None,
    )
    start: Start | None = Field(None, exclude_if=lambda value: value is None)
    traceparent: Traceparent | None = Field(
        None,
        description="The span that its traces are children of; default: the request's header of "
        "that name. Submitted again with another, it is the same group.",
        exclude_if=lambda value: value is None,
    )

    only: list[int] | None = Field(
        None,
        min_length=1,
        description="Indices of the rollouts wanted; None: all. Submitted again with fewer, the "
        "others that have not ended are cancelled. Fronts give a part of a group so.",
        exclude_if=lambda value: value is None,
    )

    @model_validator(mode="after")
    def _has_what_is_wanted(self) -> Self:
        if self.only is not None and (
            len(set(self.only)) < len(self.only) or not set(self.only) <= set(range(self.n))
        ):
            raise ValueError(f"`only` names different indices below n, which is {self.n}")
        return self

    @property
    def indices(self) -> Sequence[int]:
        """Indices of its rollouts that are wanted."""
        return range(self.n) if self.only is None else self.only

    @property
    def submitter(self) -> str | None:
        return self.client or self.training

    def is_same_as(self, other: "Group") -> bool:
        """Returns whether this is the same work as `other`, or a part of it, for the same training
        if this one names any; their traces may differ."""
        training = other.training if self.training is None else self.training
        own: dict[str, object] = {
            "traceparent": self.traceparent,
            "only": self.only,
            "training": training,
        }
        if self.start is not None and self.start.is_same_as(other.start):
            own["start"] = self.start
        is_alike = self.model_copy(update=own) == other.model_copy(update=own)
        is_of_training = training == other.training
        return is_alike and is_of_training and set(self.indices) <= set(other.indices)

    def rollout_id(self, index: int) -> str:
        return f"{self.group_id}.{index}"

    def rollout_ids(self) -> list[str]:
        return [self.rollout_id(index) for index in self.indices]


Invalid = Literal["refuse", "fail"]


class SubmitRequest(WireModel):
    groups: list[Group] = Field(min_length=1, max_length=MAX_ROLLOUTS_PER_REQUEST)
    invalid: Invalid = Field(
        "refuse",
        description="When the task of a group cannot run: refuse all groups with a 422, or accept "
        "them all and end the rollouts of that one as failed.",
    )

    @field_validator("groups")
    @classmethod
    def _can_be_accepted(cls, groups: list[Group]) -> list[Group]:
        if len({group.group_id for group in groups}) != len(groups):
            raise ValueError("every group needs a group_id of its own")
        if sum(len(group.indices) for group in groups) > MAX_ROLLOUTS_PER_REQUEST:
            raise ValueError(f"at most {MAX_ROLLOUTS_PER_REQUEST} rollouts in one request")
        return groups


class TaskChecks(WireModel):
    """Tasks to check as a submission would. Each is an object, so that one that is no task is a
    problem of its own."""

    tasks: list[dict[str, JsonValue]] = Field(min_length=1, max_length=MAX_CHECKS_PER_REQUEST)
    sampling: Sampling = Sampling()


class TaskProblem(WireModel):
    """Why a task would be refused."""

    index: int = Field(description="The task's place in the request.")
    task_id: str | None = Field(None, description="Null if the task has no valid one.")
    field: str = Field(description="Place in the task, such as `data.answer`; empty: all of it.")
    message: str
    hint: str = ""


class TaskProblems(WireModel):
    problems: list[TaskProblem] = Field(description="Empty if all tasks can run.")


class RolloutIds(WireModel):
    rollout_ids: list[Id] = Field(min_length=1, max_length=MAX_IDS_PER_REQUEST)


class StreamForm(StrEnum):
    """What a stream says of each ended rollout.

    `whole`: all in one line. `summary`: all but the content, which is the trajectory and the
    report. `parts`: the summary in one line, and the content in the next.
    """

    WHOLE = "whole"
    SUMMARY = "summary"
    PARTS = "parts"


class StreamRequest(RolloutIds):
    form: StreamForm = StreamForm.WHOLE


class GroupIds(WireModel):
    group_ids: list[GroupId] = Field(min_length=1, max_length=MAX_IDS_PER_REQUEST)
